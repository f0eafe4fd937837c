"""Hugging Face: a ``RobustLoss`` as the ``compute_loss_func`` of a ``Trainer``.

    robust = RobustLoss(F.cross_entropy, drop_rate=0.3, ramp=3, class_dim=-1)
    Trainer(..., compute_loss_func=trainer_loss(robust), callbacks=[RobustCallback(robust)])

The callback is needed for a rate that changes, for a ledger, and for the figures in the log.
"""

# The framework is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gradsieve.dropin.robust_loss import RobustLoss
from gradsieve.errors import CheckpointError, InputError, MissingExtraError
from gradsieve.ranks import gather_rows, sum_over_ranks, world_size
from gradsieve.schedule import Unit, check_unit
from gradsieve.scores.outputs import described
from gradsieve.training.files import read_json, read_tensors, write_json, write_tensors

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise MissingExtraError("transformers", "hf", "The Hugging Face callback") from error


def trainer_loss(robust: RobustLoss, *, shift_labels: bool | None = None) -> Callable[..., Tensor]:
    """The function for ``Trainer(compute_loss_func=...)``.

    ``shift_labels=True`` is for models that predict the next token, False for such models with labels that are shifted
    already. Without it labels are not shifted, and a model that predicts the next token is an error.
    """
    return partial(compute_loss, robust, shift_labels)


def compute_loss(
    robust: RobustLoss,
    shift_labels: bool | None,
    outputs: Any,
    labels: Any,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """The loss of one micro-batch, as its share of the update that it is a part of."""
    if labels is None:
        raise InputError(
            "The batch has no column 'labels', the only one that the trainer gives to a loss. Name yours so "
            "(label_names does not help); several labels of a row go into one tensor."
        )
    if not isinstance(labels, Tensor):
        raise InputError(f"labels is {described(labels)}, but must be one tensor, with an entry for each row.")
    logits = logits_of(outputs)
    if shift_labels is None:
        check_unshifted(outputs, logits, labels)
    if shift_labels:
        logits, labels = logits[:, :-1], labels[:, 1:]
    rows = _numbers.pop(robust, None)
    if torch.is_grad_enabled():
        check_told(robust, rows)
    if labels.is_floating_point() and logits.shape == (*labels.shape, 1):  # a model with num_labels=1
        logits = logits.squeeze(-1)
    # The trainer evaluates without gradients, but does not put the loss in eval mode.
    loss = robust(logits, labels, rows=rows) if torch.is_grad_enabled() else robust.plain(logits, labels)
    if num_items_in_batch is None or robust.adds_up:  # a sum needs no scaling: the trainer adds up micro-batches
        return loss
    # The trainer expects the sum over this rank's labels divided by the number of labels in all micro-batches of all
    # ranks. Our loss is a mean over the ranks: it is scaled by this micro-batch's share of all labels.
    items = labels.ne(-100).sum()
    if torch.is_grad_enabled():
        items = sum_over_ranks(items) / world_size()
    return loss * (items / num_items_in_batch)


def check_unshifted(outputs: Any, logits: Tensor, labels: Tensor) -> None:
    """Raise for a model that predicts the next token if labels are not shifted: it would learn to repeat its input.

    Its own loss would shift them. Such a model shows only by the type of its outputs: the trainer does not pass it.
    """
    kind = type(outputs).__name__
    if "CausalLM" in kind and labels.shape == logits.shape[:-1]:
        raise InputError(
            f"The model gives {kind}: it predicts the next token, but the labels are not shifted, so that it would "
            "learn to repeat its input. Pass trainer_loss(robust, shift_labels=True); or shift_labels=False, if your "
            "labels are shifted already."
        )


def check_told(robust: RobustLoss, rows: Tensor | None) -> None:
    """Raise if a changing rate does not get the time, or a ledger the row numbers: the callback passes both."""
    if robust.awaits_time:
        raise InputError(
            "The drop rate changes with the time, but nobody tells the loss the time. Add callbacks="
            "[RobustCallback(robust)] to the trainer; or call robust.at(1) first, if a callback of yours does."
        )
    if robust.has_ledger and rows is None:
        raise InputError(
            "The loss has a ledger, but nobody tells it which rows it gets. Give the data set a column of row numbers, "
            "and name it: callbacks=[RobustCallback(robust, row_column='row')]."
        )


# By loss: the numbers of the rows that the model has just been called with, for the loss of the same batch. The trainer
# passes only outputs and labels to a loss.
_numbers: WeakKeyDictionary[RobustLoss, Tensor] = WeakKeyDictionary()


def take_rows(robust: RobustLoss, column: str, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """A hook before the model's call: take the row numbers, which the model does not accept, out of the batch."""
    if column in kwargs:
        _numbers[robust] = kwargs[column]
    return args, {name: value for name, value in kwargs.items() if name != column}


def logits_of(outputs: Any) -> Tensor:
    """The logits in a model's outputs: an entry or attribute of that name, or the first of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, tuple | list) and outputs:
        found = outputs[0]
    if isinstance(found, Tensor) and found.dim():  # a single number is a loss
        return found
    raise InputError(f"The model gives {type(outputs).__name__} without logits. Return a dict with 'logits'.")


def kept_share(robust: RobustLoss) -> float:
    """The kept share of the last micro-batch over all ranks. It gathers, which works as all ranks log together."""
    judged = robust.judgement().judged
    count = robust.scores.new_tensor(len(robust.scores)) if judged is None else judged.sum()
    kept, rows = gather_rows([torch.stack([robust.kept_share * count, count])[None]]).values[0].sum(0).tolist()
    return kept / max(1.0, rows)


def checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """The trainer's checkpoint of this step."""
    return Path(args.output_dir or "", f"checkpoint-{state.global_step}")


def save_loss(robust: RobustLoss, folder: Path) -> None:
    """Save the loss's state; robust_loss.json comes last and holds its SHA-256."""
    sha256 = write_tensors(folder / "robust_loss.safetensors", robust.state_dict())
    write_json(folder / "robust_loss.json", {"sha256": sha256})


def load_loss(robust: RobustLoss, folder: Path) -> bool:
    """Load the state that was saved, if there is one; one error if it has been damaged since."""
    listed = folder / "robust_loss.json"
    if not listed.exists():
        return False
    way_out = f"Delete {listed} to go on with an empty ledger."
    recorded = read_json(listed, way_out)
    try:
        tensors = read_tensors(folder / "robust_loss.safetensors", recorded["sha256"])
    except (CheckpointError, TypeError, KeyError) as error:
        reason = error if isinstance(error, CheckpointError) else f"{listed} is damaged: it has no SHA-256."
        raise CheckpointError(f"{reason} {way_out}") from error
    robust.load_state_dict(tensors)
    return True


class RobustCallback(TrainerCallback):
    """Tell a ``RobustLoss`` the epoch (or step), and log ``drop_rate`` and ``kept_share``.

    The time comes from the trainer's own state, so that a resumed run continues at the right time; the ledger is part
    of the trainer's checkpoints. ``row_column``: the column of the data set with the numbers of its rows, for the
    ledger. The model does not see it.
    """

    def __init__(self, robust: RobustLoss, every: Unit = "epoch", *, row_column: str | None = None) -> None:
        self.robust = robust
        self.every = check_unit(every)
        self.row_column = row_column
        self.hooked: nn.Module | None = None
        self.next_epoch = 1

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.hook(args, kwargs["model"])

    def hook(self, args: TrainingArguments, model: nn.Module) -> None:
        """Take the row numbers out of each batch. The hook stays after training: evaluation may have the column too."""
        if self.row_column is None or self.hooked is model:
            return
        if args.remove_unused_columns and self.row_column not in (args.label_names or ()):
            raise InputError(
                f"The trainer removes the columns that the model does not take, {self.row_column!r} among them. Pass "
                "remove_unused_columns=False to TrainingArguments, and remove what else the model does not take."
            )
        model.register_forward_pre_hook(partial(take_rows, self.robust, self.row_column), with_kwargs=True)
        self.hooked = model

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.next_epoch = 1
        if "model" in kwargs:
            self.hook(args, kwargs["model"])  # a callback may have been added later
        if args.label_smoothing_factor:
            warnings.warn(
                f"label_smoothing_factor={args.label_smoothing_factor} is of no effect: the trainer leaves the loss to "
                "compute_loss_func. Smooth there: RobustLoss(nn.CrossEntropyLoss(label_smoothing=...), ...).",
                stacklevel=3,
            )
        if state.global_step and self.robust.has_ledger:
            folder = checkpoint(args, state)
            if not load_loss(self.robust, folder) and not self.robust.has_entries:
                warnings.warn(
                    f"The ledger of a resumed run begins empty, for {folder} has no robust_loss.json. If you have it "
                    "elsewhere, put it there with robust_loss.safetensors, and resume again.",
                    stacklevel=2,
                )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = checkpoint(args, state)
        if self.robust.has_ledger and args.should_save and folder.is_dir():
            save_loss(self.robust, folder)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.every == "epoch":
            # Epochs are counted in fractions here, and those of a data set without a length never get to whole numbers.
            self.robust.at(max(int((state.epoch or 0.0) + 1e-6) + 1, self.next_epoch))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.next_epoch = self.robust.T + 1

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.every == "step":
            self.robust.at(state.global_step + 1)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs.get("logs")
        if logs is None or "loss" not in logs or self.robust.last is None:
            return
        figures = {"drop_rate": self.robust.rate, "kept_share": kept_share(self.robust)}
        logs.update(figures)  # for the reporters after this one
        state.log_history[-1].update(figures)
