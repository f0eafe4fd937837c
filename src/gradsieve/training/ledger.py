"""What happened to each row over a whole run, in 16 bytes per row."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass
class Ledger:
    """Per row: how often it was judged (kept or dropped), dropped and scored, and the sum of its scores."""

    judged: Tensor  # (N,) int32; twice per step with two networks
    dropped: Tensor  # (N,) int32
    scored: Tensor  # (N,) int32; not every method scores in every step
    score_sum: Tensor  # (N,) float32

    @classmethod
    def empty(cls, rows: int, device: torch.device | str = "cpu") -> Ledger:
        """A ledger in which nothing has happened."""
        judged = torch.zeros(rows, dtype=torch.int32, device=device)
        return cls(judged, judged.clone(), judged.clone(), torch.zeros(rows, dtype=torch.float32, device=device))

    def record(self, rows: Tensor, scores: Tensor | None, kept: Tensor) -> None:
        """Enter one network's judgement of a batch: its ``rows`` in the set, their scores, and the kept positions."""
        once = torch.ones(len(rows), dtype=torch.int32, device=rows.device)
        self.enter(rows, scores, once, once.index_fill(0, kept, 0))

    def enter(self, rows: Tensor, scores: Tensor | None, judged: Tensor, dropped: Tensor) -> None:
        """Add up, for each of ``rows``, how often it was judged and dropped, and its score (0 where not judged)."""
        # A batch holds a row once, so index_add_ is deterministic on a GPU too; only with row weights may it repeat.
        self.judged.index_add_(0, rows, judged)
        self.dropped.index_add_(0, rows, dropped)
        if scores is not None:
            self.scored.index_add_(0, rows, judged)
            self.score_sum.index_add_(0, rows, scores.float().nan_to_num(nan=torch.inf, posinf=torch.inf))

    def record_absent(self, rows: Tensor, scores: Tensor | None) -> None:
        """Enter rows that an epoch left out as a whole, with their scores."""
        self.record(rows, scores, kept=rows[:0])

    @property
    def mean_score(self) -> Tensor:
        """The mean score of each row; NaN if it was never scored."""
        return self.score_sum / self.scored

    @property
    def drop_share(self) -> Tensor:
        """The share of its judgements in which each row was dropped; NaN if it was never judged."""
        return self.dropped / self.judged

    def cpu(self) -> Ledger:
        """The same ledger in host memory."""
        return Ledger(**{name: column.cpu() for name, column in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The columns by name, for saving."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
