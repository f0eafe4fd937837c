"""skorch: a ``RobustLoss`` as the criterion of a net.

    NeuralNetClassifier(
        network, criterion=RobustLoss, criterion__criterion=F.cross_entropy, criterion__drop_rate=0.3,
        callbacks=[RobustCallback()], predict_nonlinearity=nn.Softmax(dim=-1),
    )

skorch puts the loss in eval mode to validate, and can search over ``criterion__drop_rate``. It guesses what turns
outputs into probabilities from the type of the criterion, which it does not know here: hence the last argument.
"""

# The framework is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from gradsieve.dropin.robust_loss import RobustLoss
from gradsieve.errors import InputError, MissingExtraError
from gradsieve.schedule import Unit, check_unit

try:
    from skorch import NeuralNet
    from skorch.callbacks import Callback
except ImportError as error:
    raise MissingExtraError("skorch", "skorch", "The skorch callback") from error


class RobustCallback(Callback):
    """Tell the criterion the epoch (or step), and write ``drop_rate`` and ``kept_share`` into the history."""

    def __init__(self, every: Unit = "epoch") -> None:
        self.every = every

    def on_train_begin(self, net: NeuralNet, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        check_unit(self.every)
        loss_of(net)

    def on_epoch_begin(
        self, net: NeuralNet, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any
    ) -> None:
        if self.every == "epoch":
            loss_of(net).at(len(net.history))

    def on_batch_end(self, net: NeuralNet, batch: Any = None, training: Any = None, **kwargs: Any) -> None:
        if self.every == "step" and training:
            loss_of(net).step()

    def on_epoch_end(self, net: NeuralNet, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        robust = loss_of(net)
        if robust.last is not None:
            net.history.record("drop_rate", robust.rate)
            net.history.record("kept_share", float(robust.kept_share))


def loss_of(net: NeuralNet) -> RobustLoss:
    """The net's criterion, which must be ours."""
    if not isinstance(net.criterion_, RobustLoss):
        raise InputError(
            f"The net's criterion is {type(net.criterion_).__name__}, but the callback serves a RobustLoss. Pass "
            "criterion=RobustLoss, criterion__criterion=..., criterion__drop_rate=..."
        )
    return net.criterion_
