"""The scores and kept rows of a loss's last batch. What can wait is computed only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradsieve.dropin.trimmed_loss import Score, agreement, ranking
from gradsieve.scores.loss import Criterion
from gradsieve.scores.recall import take

Value = TypeVar("Value")


class Judgement(NamedTuple):
    """How one call judged its M rows or elements. The tensors stay on the device, and are valid until the next call."""

    scores: Callable[[], Tensor]  # (M,)
    kept: Tensor  # (K,) positions, or a mask (M,)
    judged: Tensor | None  # (M,) mask of those that have a label; None: all have one
    agreement: Callable[[], Tensor | None]  # (M,) the share of each one's labels that the network predicts

    def kept_positions(self) -> Tensor:
        """The positions of what was kept, (K,), ascending."""
        return self.kept.nonzero().squeeze(1) if self.kept.dtype == torch.bool else self.kept.clone()

    def size(self) -> int:
        """The number of rows or elements, M."""
        return len(self.kept if self.kept.dtype == torch.bool else self.scores())

    def kept_share(self) -> Tensor:
        """The share that was kept, among the rows or elements that have a label."""
        if self.kept.dtype != torch.bool:
            return self.scores().new_tensor(len(self.kept) / max(1, self.size()))
        judged = torch.ones_like(self.kept) if self.judged is None else self.judged
        return self.kept.sum() / judged.sum().clamp(min=1)

    def kept_agreement(self) -> Tensor | None:
        """The share of the kept labels that the network predicts; None without classes."""
        agrees = self.agreement()
        if agrees is None:
            return None
        agrees = agrees.float()
        if self.kept.dtype != torch.bool:
            return take(agrees, self.kept).mean()
        return (agrees * self.kept).sum() / self.kept.sum().clamp(min=1)

    def masks(self, count: int) -> tuple[Tensor, Tensor]:
        """Two masks of the ``count`` rows or elements, (M,): which have a label, and which were kept."""
        judged = self.kept.new_ones(count, dtype=torch.bool) if self.judged is None else self.judged
        if self.kept.dtype == torch.bool:
            return judged, self.kept
        return judged, torch.zeros_like(judged).index_fill_(0, self.kept, True)


def judged_rows(
    score: Score,
    criterion: Criterion,
    ignored: int | None,
    outputs: Tensor,
    given: np.ndarray,
    kept: np.ndarray,
) -> Judgement:
    """The judgement of a batch that took the short way (``short``): all its rows have a label."""
    targets = torch.from_numpy(given)
    scores = partial(scores_of, score, criterion, outputs, targets)
    return Judgement(scores, torch.from_numpy(kept), None, partial(agreement, outputs, targets, ignored))


def scores_of(score: Score, criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    return ranking(score, criterion, outputs, targets).values


def known(value: Value) -> Callable[[], Value]:
    """A function that returns a value that is already computed. Unlike a lambda, it can be copied and pickled."""
    return partial(same, value)


def same(value: Value) -> Value:
    return value
