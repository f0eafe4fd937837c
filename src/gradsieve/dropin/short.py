"""The two usual losses in the fewest steps. On a CPU a batch of some hundred rows is so soon computed that a loss costs
what its calls cost: each of them up to a hundredth of a training step, and autograd's own as many again. Calls of numpy
cost less.

A batch that is cut between nearly equal scores, or keeps a broken row, is left to the usual way: the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve.errors import InputError
from gradsieve.scores.loss import Criterion, unpack

NEAR = 1e-5  # relative: what the order of a sum can change, with room
MOST_VALUES = 2**18  # of outputs: above it the work counts, and torch shares it among the cores
ZERO = np.float32(0)  # in place of what is dropped: 0 times NaN would be NaN
PRECISIONS = (torch.float32, torch.float64)


class Trimmed(NamedTuple):
    """The mean loss of the rows kept of N, its gradient at all outputs, and which they are."""

    loss: float
    gradient: Tensor  # of the shape of the outputs, up to the factor
    scale: float
    kept: np.ndarray  # (N,) bool


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


def of_squares(outputs: Tensor, targets: Tensor, count: int) -> Trimmed | None:
    """Squared error: its loss and its gradient rank alike."""
    if outputs.shape != targets.shape or outputs.dtype != targets.dtype or outputs.dtype not in PRECISIONS:
        return None
    difference = (outputs - targets).numpy()  # numpy would warn of infinities
    rows = difference if difference.ndim == 2 else difference.reshape(len(difference), -1)
    squares = np.square(rows).dot(ones(rows.shape[1], rows.dtype.char))
    least = smallest(squares, count)
    if least is None:
        return None
    kept = squares <= least[-1]
    gradient = np.where(kept[:, None], rows, ZERO)
    if difference.ndim != 2:
        gradient = gradient.reshape(difference.shape)
    elements = count * rows.shape[1]
    return Trimmed(float(least.sum()) / elements, torch.from_numpy(gradient), 2 / elements, kept)


def of_classes(outputs: Tensor, classes: Tensor, count: int, by_loss: bool = False) -> Trimmed | None:
    """Cross-entropy of (N, C) logits. Classes come first in here: torch's softmax over few side by side is slow."""
    if outputs.dim() != 2 or classes.shape != outputs.shape[:1] or classes.dtype != torch.int64:
        return None
    if outputs.dtype not in PRECISIONS:
        return None
    logs = outputs.t().contiguous().log_softmax(0)
    try:
        own = logs.gather(0, classes.unsqueeze(0)).numpy()[0]
    except RuntimeError:  # a label that is ignored, or that is none
        return None
    gradient = np.exp(logs.numpy())
    gradient[classes.numpy(), numbers(len(classes))] = np.expm1(own)  # p - 1, without the rounding of p
    scores = -own if by_loss else ones(len(gradient), gradient.dtype.char).dot(np.square(gradient))
    least = smallest(scores, count)
    if least is None:
        return None
    kept = scores <= least[-1]
    loss = -float(own[kept].sum()) / count
    return Trimmed(loss, torch.from_numpy(np.where(kept, gradient, ZERO).T), 1 / count, kept)


def of_classes_by_loss(outputs: Tensor, classes: Tensor, count: int) -> Trimmed | None:
    """The same, for rows ranked by their loss."""
    return of_classes(outputs, classes, count, by_loss=True)


def smallest(scores: np.ndarray, count: int) -> np.ndarray | None:
    """The ``count`` smallest scores, ascending, where there is no doubt. (numpy sorts faster than it selects.)"""
    if not 0 < count < len(scores):
        return None
    ascending = np.sort(scores)
    last, following = ascending[count - 1 : count + 1].tolist()
    return ascending[:count] if following > last * (1 + NEAR) else None  # NaN and infinity stand behind all others


@lru_cache(16)
def ones(count: int, kind: str) -> np.ndarray:
    return np.ones(count, kind)


@lru_cache(16)
def numbers(count: int) -> np.ndarray:
    return np.arange(count)


class KnownLoss(torch.autograd.Function):
    """A loss whose value and gradient at the outputs are known already."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: float, gradient: Tensor, scale: float) -> Tensor:
        ctx.gradient, ctx.scale = gradient, scale
        return gradient.new_full((), loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # as once_differentiable would see to, in less time
            raise InputError(
                "The gradient of RobustLoss was asked for with create_graph=True, but it can be taken only once. For a "
                "gradient of a gradient use the criterion itself on outputs[robust.kept]."
            )
        return ctx.gradient * (gradients[0].item() * ctx.scale), None, None, None
