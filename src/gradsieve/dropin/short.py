"""The rows to keep, for the two usual losses, in the fewest steps. On a CPU a batch of some hundred rows is so soon
computed that a loss costs what its calls cost: each of them up to a hundredth of a training step. Calls of numpy cost
less than torch's. Of classes, the dropped rows get a label that is ignored, and the criterion does the rest.

A batch that is cut between nearly equal scores, or has a broken row, is left to the usual way: the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve.errors import InputError
from gradsieve.scores.loss import Criterion, unpack

NEAR = 1e-5  # relative: what the order of a sum can change, with room
LEAST_SCORE, MOST_LOSS = 1e-30, 80.0  # beyond, the numbers that a score is made of may be too small to have all digits
LEAST_SUM = 1e-3  # of a row's e, likewise
MOST_SUM = 1e18  # of a row's e: it is squared, in single precision
MOST_VALUES = 2**18  # of outputs: above it the work counts, and torch shares it among the cores
PRECISIONS = (torch.float32, torch.float64)


class Trimmed(NamedTuple):
    """The mean loss of the rows kept of N, and which they are."""

    loss: Tensor
    kept: np.ndarray  # (N,) bool


Trim = Callable[[Tensor, Tensor, int], Trimmed | None]  # outputs, targets, how many rows stay


def short_form(criterion: Criterion, score: str) -> Trim | None:
    """The form that a criterion has here, or None."""
    function, options = unpack(criterion)
    if function is F.mse_loss and not options:
        return of_squares
    alike = options.get("weight") is None and not options.get("label_smoothing")
    if function is F.cross_entropy and alike and options.get("ignore_index", -100) < 0:  # no class is ignored
        return partial(of_classes, by_loss=True) if score == "loss" else of_classes
    return None


def of_squares(outputs: Tensor, targets: Tensor, count: int) -> Trimmed | None:
    """Squared error: its loss and its gradient rank alike, and both are at hand with the scores."""
    if outputs.shape != targets.shape or outputs.dtype != targets.dtype or outputs.dtype not in PRECISIONS:
        return None
    difference = (outputs.detach() - targets).numpy()  # numpy would warn of infinities
    rows = difference if difference.ndim == 2 else difference.reshape(len(difference), -1)
    squares = np.einsum("ij,ij->i", rows, rows)
    kept = smallest(squares, count)
    if kept is None:
        return None
    difference *= kept.reshape(-1, *[1] * (difference.ndim - 1))  # not ``rows``, which may be a copy
    elements = count * rows.shape[1]
    loss = KnownLoss.apply(outputs, float(squares.dot(kept)) / elements, torch.from_numpy(difference), 2 / elements)
    return Trimmed(cast(Tensor, loss), kept)


def of_classes(outputs: Tensor, classes: Tensor, count: int, by_loss: bool = False) -> Trimmed | None:
    """Cross-entropy of (N, C) logits, whose label -100 is ignored; rows are ranked by their gradient, or ``by_loss``.

    With p = e / sum(e), the gradient p - 1 at the own class is minus the sum of the others: without its rounding.
    """
    if classes.dtype != torch.int64 or outputs.dtype not in PRECISIONS or outputs.dim() != 2 or classes.dim() != 1:
        return None
    given, (rows, kinds) = classes.numpy(), outputs.shape
    # Below 0 is huge without a sign: a label that is ignored, or that is none.
    if not rows or given.size != rows or np.maximum.reduce(given.view(np.uint64)) >= kinds:
        return None
    own_place = given + firsts(rows, kinds)
    with np.errstate(all="ignore"):  # e may overflow: such a row is noticed
        others = np.exp(outputs.detach().numpy())
        own = others.take(own_place)
        others.put(own_place, 0)
        one = ones(kinds, others.dtype.char)
        rest = others.dot(one)
        total = rest + own
        if not (np.minimum.reduce(total) > LEAST_SUM and np.maximum.reduce(total) < MOST_SUM):  # logits far from 0
            return None
        scores = np.log1p(rest / own) if by_loss else (np.square(others).dot(one) + rest * rest) / (total * total)
        kept = smallest(scores, count, MOST_LOSS if by_loss else inf)
    if kept is None:
        return None
    return Trimmed(F.cross_entropy(outputs, torch.from_numpy(np.where(kept, given, -100))), kept)


def smallest(scores: np.ndarray, count: int, most: float = inf) -> np.ndarray | None:
    """Which are the ``count`` smallest scores, where there is no doubt. (numpy sorts faster than it selects.)"""
    if not 0 < count < scores.size:
        return None
    ascending = scores.copy()
    ascending.sort()
    last, following = ascending.item(count - 1), ascending.item(count)
    is_plain = LEAST_SCORE < last < most and ascending.item(-1) < inf  # NaN and infinity stand behind all others
    return scores <= last if is_plain and following > last * (1 + NEAR) else None


@lru_cache(16)
def ones(count: int, kind: str) -> np.ndarray:
    return np.ones(count, kind)


@lru_cache(16)
def firsts(rows: int, columns: int) -> np.ndarray:
    """Where each row begins in a table laid out row by row."""
    return np.arange(0, rows * columns, columns)


class KnownLoss(torch.autograd.Function):
    """A loss whose value and gradient at the outputs, up to a factor, are known already."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: float, gradient: Tensor, scale: float) -> Tensor:
        ctx.gradient, ctx.scale = gradient, scale
        return outputs.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # as once_differentiable would see to, in less time
            raise InputError(
                "The gradient of RobustLoss was asked for with create_graph=True, but it can be taken only once. For a "
                "gradient of a gradient use the criterion itself on outputs[robust.kept]."
            )
        return ctx.gradient * (gradients[0].item() * ctx.scale), None, None, None
