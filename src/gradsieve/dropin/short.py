"""The two usual losses in the fewest steps. On a CPU a batch of some hundred rows is so soon computed that a loss costs
what its calls cost: each of them up to a hundredth of a training step, and autograd's own as many again. Calls of numpy
cost less.

A batch that is cut between nearly equal scores, or keeps a broken row, is left to the usual way: the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradsieve.scores.loss import Criterion, unpack

NEAR = 1e-5  # relative: what the order of a sum can change, with room
MOST_VALUES = 2**17  # of outputs: above it the work counts, and torch shares it among the cores
ZERO = np.float32(0)  # in place of what is dropped: 0 times NaN would be NaN
PRECISIONS = (torch.float32, torch.float64)


class Trimmed(NamedTuple):
    """The mean loss of the rows kept of N, its gradient at all outputs, and which they are."""

    loss: float
    gradient: Tensor  # of the shape of the outputs, up to the factor
    scale: float
    kept: Tensor  # (N,) bool


Trim = Callable[[Tensor, Tensor, int], Trimmed | None]  # outputs cut from the graph, targets, how many rows stay


def short_form(criterion: Criterion, score: str) -> Trim | None:
    """The form that a criterion has here, or None."""
    function, options = unpack(criterion)
    if function is F.mse_loss and not options:
        return of_squares
    alike = options.get("weight") is None and not options.get("label_smoothing")
    if function is F.cross_entropy and alike and options.get("ignore_index", -100) < 0:  # no class is ignored
        return of_classes_by_loss if score == "loss" else of_classes
    return None


@np.errstate(all="ignore")
def of_squares(outputs: Tensor, targets: Tensor, count: int) -> Trimmed | None:
    """Squared error: its loss and its gradient rank alike."""
    if outputs.shape != targets.shape or outputs.dtype != targets.dtype or not is_small(outputs, count):
        return None
    difference = np.subtract(outputs.numpy(), targets.numpy())
    rows = difference.reshape(len(difference), -1)
    squares = np.einsum("ij,ij->i", rows, rows)
    kept = smallest(squares, count)
    if kept is None:
        return None
    loss = mean(squares, kept, count) / rows.shape[1]
    gradient = np.where(kept[:, None], rows, ZERO).reshape(difference.shape)
    return trimmed(loss, gradient, 2 / (count * rows.shape[1]), kept)


@np.errstate(all="ignore")
def of_classes(outputs: Tensor, classes: Tensor, count: int, by_loss: bool = False) -> Trimmed | None:
    """Cross-entropy of (N, C) logits. Classes come first in here: torch's softmax over few side by side is slow."""
    if outputs.dim() != 2 or classes.dtype != torch.int64 or classes.shape != outputs.shape[:1]:
        return None
    if not is_small(outputs, count):
        return None
    logs = outputs.t().contiguous().log_softmax(0)
    try:
        own = logs.gather(0, classes.unsqueeze(0)).numpy()[0]
    except RuntimeError:  # a label that is ignored, or that is none
        return None
    gradient = np.exp(logs.numpy())
    gradient[classes.numpy(), np.arange(len(classes))] = np.expm1(own)  # p - 1, without the rounding of p
    kept = smallest(-own if by_loss else np.einsum("ij,ij->j", gradient, gradient), count)
    if kept is None:
        return None
    return trimmed(-mean(own, kept, count), np.where(kept, gradient, ZERO).T, 1 / count, kept)


def of_classes_by_loss(outputs: Tensor, classes: Tensor, count: int) -> Trimmed | None:
    """The same, for rows ranked by their loss."""
    return of_classes(outputs, classes, count, by_loss=True)


def is_small(outputs: Tensor, count: int) -> bool:
    """Whether a batch is one for numpy, and loses some of its rows, not all."""
    return outputs.dtype in PRECISIONS and outputs.numel() <= MOST_VALUES and 0 < count < len(outputs)


def smallest(values: np.ndarray, count: int) -> np.ndarray | None:
    """Which are the ``count`` smallest, where there is no doubt about it."""
    last, following = np.partition(values, (count - 1, count))[count - 1 : count + 1].tolist()
    return values <= last if following > last * (1 + NEAR) else None


def mean(values: np.ndarray, kept: np.ndarray, count: int) -> float:
    """The mean of those kept."""
    return float(np.add.reduce(values, where=kept, dtype=np.float64)) / count


def trimmed(loss: float, gradient: np.ndarray, scale: float, kept: np.ndarray) -> Trimmed | None:
    """What was found, unless a broken row was kept."""
    return Trimmed(loss, torch.from_numpy(gradient), scale, torch.from_numpy(kept)) if isfinite(loss) else None


class KnownLoss(torch.autograd.Function):
    """A loss whose value and gradient at the outputs are known already."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: float, gradient: Tensor, scale: float) -> Tensor:
        ctx.gradient, ctx.scale = gradient, scale
        return gradient.new_full((), loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.gradient * (gradients[0].item() * ctx.scale), None, None, None
