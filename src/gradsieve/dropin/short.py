"""The rows to keep, for the two usual losses, in the fewest steps. On a CPU a batch of some hundred rows is so soon
computed that a loss costs what its calls cost: each of them up to a hundredth of a training step. Calls of numpy cost
less than torch's, and nothing is computed for a gradient: the dropped rows get targets that weigh nothing, and the
criterion itself does the rest.

A batch that is cut between nearly equal scores, or has a broken row, is left to the usual way: the answer is None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve.scores.loss import Criterion, unpack

NEAR = 1e-5  # relative: what the order of a sum can change, with room
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
        return of_classes_by_loss if score == "loss" else of_classes
    return None


def of_squares(outputs: Tensor, targets: Tensor, count: int) -> Trimmed | None:
    """Squared error: its loss and its gradient rank alike. A dropped row's target is what the network says already."""
    if outputs.shape != targets.shape or outputs.dtype != targets.dtype or outputs.dtype not in PRECISIONS:
        return None
    said, given = outputs.detach().numpy(), targets.numpy()
    with np.errstate(all="ignore"):  # a broken row is noticed below
        difference = given - said
        rows = difference if difference.ndim == 2 else difference.reshape(len(difference), -1)
        kept = smallest(np.square(rows).dot(ones(rows.shape[1], rows.dtype.char)), count)
    if kept is None:
        return None
    neutral = np.where(kept.reshape(-1, *[1] * (given.ndim - 1)), given, said)
    return Trimmed(F.mse_loss(outputs, torch.from_numpy(neutral)) * (len(kept) / count), kept)


def of_classes(outputs: Tensor, classes: Tensor, count: int, by_loss: bool = False) -> Trimmed | None:
    """Cross-entropy of (N, C) logits, whose label -100 is ignored.

    With p = e / sum(e), the gradient p - 1 at the own class is minus the sum of the others: without its rounding.
    """
    if outputs.dim() != 2 or classes.shape != outputs.shape[:1] or classes.dtype != torch.int64:
        return None
    if outputs.dtype not in PRECISIONS:
        return None
    given = classes.numpy()
    rows = numbers(given.size)
    # A label that is ignored, or is none: without its sign a negative number is a large one.
    if given.size == 0 or np.maximum.reduce(given.view(np.uint64)).item() >= outputs.shape[1]:
        return None
    with np.errstate(all="ignore"):  # e may overflow: such a row is noticed below
        others = np.exp(outputs.detach().numpy())
        own = others[rows, given]
        others[rows, given] = 0
        one = ones(others.shape[1], others.dtype.char)
        rest = others.dot(one)
        total = rest + own
        scores = np.log1p(rest / own) if by_loss else (np.square(others).dot(one) + rest * rest) / (total * total)
        kept = smallest(scores, count)
    if kept is None:
        return None
    return Trimmed(F.cross_entropy(outputs, torch.from_numpy(np.where(kept, given, -100))), kept)


def of_classes_by_loss(outputs: Tensor, classes: Tensor, count: int) -> Trimmed | None:
    """The same, for rows ranked by their loss."""
    return of_classes(outputs, classes, count, by_loss=True)


def smallest(scores: np.ndarray, count: int) -> np.ndarray | None:
    """Which are the ``count`` smallest scores, where there is no doubt. (numpy sorts faster than it selects.)"""
    if not 0 < count < scores.size:
        return None
    ascending = scores.copy()
    ascending.sort()
    last, following = ascending.item(count - 1), ascending.item(count)
    if following > last * (1 + NEAR) and ascending.item(-1) < inf:  # NaN and infinity stand behind all others
        return scores <= last
    return None


@lru_cache(16)
def ones(count: int, kind: str) -> np.ndarray:
    return np.ones(count, kind)


@lru_cache(16)
def numbers(count: int) -> np.ndarray:
    return np.arange(count)
