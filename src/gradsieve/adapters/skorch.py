"""skorch: a ``RobustLoss`` as the criterion of a net.

    NeuralNetClassifier(
        network, criterion=RobustLoss, criterion__criterion=F.cross_entropy, criterion__drop_rate=0.3,
        callbacks=[RobustCallback()], predict_nonlinearity=nn.Softmax(dim=-1),
    )

skorch puts the loss in eval mode to validate, and can search over ``criterion__drop_rate``. From the type of the
criterion it guesses what turns outputs into probabilities, but does not know a ``RobustLoss``: hence the last argument.
For a ``NeuralNetBinaryClassifier`` it is `sigmoid_columns`.
"""

# The framework is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve.dropin.robust_loss import RobustLoss
from gradsieve.errors import InputError, MissingExtraError
from gradsieve.schedule import Unit, check_unit
from gradsieve.scores.loss import unpack

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
        warn_of_guesses(net, loss_of(net))

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
    """The net's criterion, which must be a ``RobustLoss``."""
    criterion = getattr(net.criterion_, "_orig_mod", net.criterion_)  # compile=True wraps it
    if not isinstance(criterion, RobustLoss):
        raise InputError(
            f"The net's criterion is {type(criterion).__name__}, but the callback serves a RobustLoss. Pass "
            "criterion=RobustLoss, criterion__criterion=..., criterion__drop_rate=..."
        )
    return criterion


def warn_of_guesses(net: NeuralNet, robust: RobustLoss) -> None:
    """Warn of what skorch does for a criterion that it knows, but not for one inside a ``RobustLoss``."""
    function = unpack(robust.criterion)[0]
    if function is F.nll_loss or isinstance(function, nn.NLLLoss):
        warnings.warn(
            "skorch takes the logarithm of a network's probabilities for NLLLoss, but not for one inside a RobustLoss. "
            "Let the network return logits, and pass criterion__criterion=F.cross_entropy.",
            stacklevel=3,
        )
    way = {F.cross_entropy: "nn.Softmax(dim=-1)", F.binary_cross_entropy_with_logits: "sigmoid_columns"}.get(function)
    if way and getattr(net, "predict_nonlinearity", None) == "auto":
        warnings.warn(
            "skorch does not know the loss inside a RobustLoss: predict_proba will return the network's outputs as "
            f"they are. Pass predict_nonlinearity={way} for probabilities.",
            stacklevel=3,
        )


def sigmoid_columns(logits: Tensor) -> Tensor:
    """Probabilities (N, 2) of the two classes, from outputs (N,) before a sigmoid."""
    second = logits.sigmoid()
    return torch.stack([1 - second, second], -1)
