"""A fast way to trim on a CPU, for squared error and cross-entropy.

With a few hundred rows, a loss takes as long as its function calls: each costs up to a hundredth of a training step.
So there are few calls here, mostly of numpy, which are cheaper than torch's. With classes, the dropped rows get the
label that is ignored, and the criterion does the rest.

If a row is broken, or scores at the threshold are nearly equal, the answer is None, and `RobustLoss` takes the usual
way.
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

NEAR = 1e-5  # scores this close (relative) may be in either order: well above the rounding of a sum
LEAST_SCORE = 1e-30  # a threshold below it may be computed from denormal numbers, which lack digits
MOST_LOSS = 80.0  # when ranking by loss, a threshold above it may be computed from denormal numbers
LEAST_SUM = 1e-3  # a row whose sum of exp(logits) is smaller may have denormal terms
MOST_SUM = 1e18  # the largest sum of exp(logits) of a row: its square must not overflow single precision
MOST_VALUES = 2**18  # output values of a batch: with more, arithmetic outweighs calls, and torch uses all cores
PRECISIONS = (torch.float32, torch.float64)


class Trimmed(NamedTuple):
    """The mean loss of the kept rows, and which they are."""

    loss: Tensor
    kept: np.ndarray  # (N,) bool


Trim = Callable[[Tensor, Tensor, int], Trimmed | None]  # outputs, targets, how many rows stay


def short_form(criterion: Criterion, score: str) -> Trim | None:
    """The fast form for a criterion; None if there is none."""
    function, options = unpack(criterion)
    if function is F.mse_loss and not options:
        return of_squares
    alike = options.get("weight") is None and not options.get("label_smoothing")
    if function is F.cross_entropy and alike and options.get("ignore_index", -100) < 0:  # no class is ignored
        return partial(of_classes, by_loss=True) if score == "loss" else of_classes
    return None


def of_squares(outputs: Tensor, targets: Tensor, count: int) -> Trimmed | None:
    """Squared error. Loss and gradient rank the rows alike, and both follow from the scores."""
    if outputs.shape != targets.shape or outputs.dtype != targets.dtype or outputs.dtype not in PRECISIONS:
        return None
    difference = (outputs.detach() - targets).numpy()  # torch subtracts: numpy would warn of infinities
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

    With e = exp(logits) and p = e / sum(e), the gradient at the given class is p - 1. It is computed as minus the sum
    of the other p, which has no cancellation.
    """
    if classes.dtype != torch.int64 or outputs.dtype not in PRECISIONS or outputs.dim() != 2 or classes.dim() != 1:
        return None
    given, (rows, kinds) = classes.numpy(), outputs.shape
    # As an unsigned number, a negative label (ignored or wrong) is huge: one comparison finds both kinds.
    if not rows or given.size != rows or np.maximum.reduce(given.view(np.uint64)) >= kinds:
        return None
    own_place = given + firsts(rows, kinds)
    with np.errstate(all="ignore"):  # exp may overflow: the check of the sums finds such a row
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
    """A mask of the ``count`` smallest scores; None if in doubt. (numpy sorts faster than it selects.)"""
    if not 0 < count < scores.size:
        return None
    ascending = scores.copy()
    ascending.sort()
    last, following = ascending.item(count - 1), ascending.item(count)
    is_plain = LEAST_SCORE < last < most and ascending.item(-1) < inf  # infinity and NaN sort last
    return scores <= last if is_plain and following > last * (1 + NEAR) else None


@lru_cache(16)
def ones(count: int, kind: str) -> np.ndarray:
    return np.ones(count, kind)


@lru_cache(16)
def firsts(rows: int, columns: int) -> np.ndarray:
    """The flat index of each row's first entry in an array (rows, columns)."""
    return np.arange(0, rows * columns, columns)


class KnownLoss(torch.autograd.Function):
    """A loss whose value and gradient at the outputs, up to a factor, are known already."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: float, gradient: Tensor, scale: float) -> Tensor:
        ctx.gradient, ctx.scale = gradient, scale
        return outputs.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # what once_differentiable checks, in less time
            raise InputError(
                "The gradient of RobustLoss was asked for with create_graph=True, but it can be taken only once. For a "
                "gradient of a gradient use the criterion itself on outputs[robust.kept]."
            )
        return ctx.gradient * (gradients[0].item() * ctx.scale), None, None, None
