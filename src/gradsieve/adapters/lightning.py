"""Lightning: put a ``RobustLoss`` where the module has its criterion, and give the trainer this callback.

    class Classifier(LightningModule):
        def __init__(self): ...; self.criterion = RobustLoss(F.cross_entropy, drop_rate=0.3, ramp=10)

    Trainer(callbacks=[RobustCallback()])

Lightning itself moves the loss, saves it in checkpoints, and puts it in eval mode to validate. Over several processes
there is one threshold for all of them, and every process has the whole ledger.
"""

# The framework is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from gradsieve.dropin.robust_loss import RobustLoss
from gradsieve.errors import InputError, MissingExtraError
from gradsieve.schedule import Unit, check_unit

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise MissingExtraError("lightning", "lightning", "The Lightning callback") from error


class RobustCallback(Callback):
    """Tell every ``RobustLoss`` of a module the epoch (or step), and log ``drop_rate`` and ``kept_share``."""

    def __init__(self, every: Unit = "epoch") -> None:
        self.every = check_unit(every)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Exclude ledgers from DDP before it wraps the module: it would send them in every step, though ranks agree."""
        ledgers = [
            f"{name}.{column}"
            for name, robust in pl_module.named_modules()
            if isinstance(robust, RobustLoss) and robust.has_ledger
            for column in robust.books().tensors()
        ]
        ignored = getattr(pl_module, "_ddp_params_and_buffers_to_ignore", [])
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(pl_module, [*ignored, *ledgers])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not any(True for _ in robust_losses(pl_module)):
            raise InputError(
                f"{type(pl_module).__name__} has no RobustLoss. Make it an attribute: "
                "self.criterion = RobustLoss(F.cross_entropy, drop_rate=0.3)."
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.every == "epoch":
            self.tell(pl_module, trainer.current_epoch + 1)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.every == "step":
            self.tell(pl_module, trainer.global_step + 1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for prefix, robust in robust_losses(pl_module):
            if robust.last is not None:
                # The mean over the epoch and the ranks, since a rank with many wrong rows keeps less than the others.
                # With a batch_size, Lightning does not guess it from the batch, which may be an object of the user's.
                figures = {f"{prefix}drop_rate": robust.rate, f"{prefix}kept_share": robust.kept_share}
                size = robust.judgement().size()
                pl_module.log_dict(figures, on_step=False, on_epoch=True, sync_dist=True, batch_size=size)

    def tell(self, pl_module: LightningModule, T: int) -> None:
        for _, robust in robust_losses(pl_module):
            robust.at(T)


def robust_losses(module: LightningModule) -> Iterator[tuple[str, RobustLoss]]:
    """Each ``RobustLoss`` of a module, with a prefix for its figures, which is empty if it is the only one."""
    found = [(name, each) for name, each in module.named_modules() if isinstance(each, RobustLoss)]
    for name, robust in found:
        yield ("" if len(found) == 1 else f"{name}."), robust
