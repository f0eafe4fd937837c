"""An epoch's counts, kept on the device and read once at its end.

The truth about corruption ends here: it is counted, and no method sees it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gradsieve.method import Selection

COMPARISONS = 2**20  # beyond so many, adding up by index is faster than comparing each row with each class


@dataclass
class Tally:
    """What an epoch kept."""

    loss: Tensor  # sum over the networks' steps
    steps: Tensor  # how many those are
    kept: Tensor  # rows trained on
    kept_corrupted: Tensor
    seen_of_class: Tensor  # (classes,), empty for regression
    kept_of_class: Tensor

    @classmethod
    def empty(cls, classes: int, device: torch.device) -> Tally:
        zero = torch.zeros((), dtype=torch.int64, device=device)
        per_class = torch.zeros(classes, dtype=torch.int64, device=device)
        return cls(zero.double(), zero, zero.clone(), zero.clone(), per_class, per_class.clone())

    def add(self, rows: Tensor, targets: Tensor, selections: Sequence[Selection], is_corrupted: Tensor) -> None:
        """Count one step of every network, over a batch of ``rows`` of the set."""
        for selection in selections:
            self.loss += selection.loss
            self.steps += 1
            self.kept += len(selection.kept)
            self.kept_corrupted += is_corrupted.index_select(0, rows.index_select(0, selection.kept)).sum()
            if len(self.seen_of_class):
                add_counts(self.seen_of_class, targets)
                add_counts(self.kept_of_class, targets.index_select(0, selection.kept))

    def add_absent(self, targets: Tensor, networks: int) -> None:
        """Count rows that a whole epoch left out: seen, and not kept."""
        if len(self.seen_of_class):
            add_counts(self.seen_of_class, targets, networks)

    def clear(self) -> None:
        """Begin another epoch, in the same memory: a captured step writes there."""
        for tensor in self.tensors().values():
            tensor.zero_()

    def read(self) -> dict[str, Any]:
        """The figures of the epoch, for people and files."""
        kept = int(self.kept)
        figures: dict[str, Any] = {
            "loss": float(self.loss) / max(1, int(self.steps)),
            "purity": 1 - int(self.kept_corrupted) / kept if kept else math.nan,
        }
        if len(self.seen_of_class):  # a minority must not vanish silently
            figures["kept_share_of_class"] = (self.kept_of_class / self.seen_of_class.clamp(min=1)).tolist()
        return figures

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def add_counts(counts: Tensor, classes: Tensor, times: int = 1) -> None:
    """Add how often each class occurs. (``bincount`` would wait for the device to know the largest.)"""
    if len(classes) * len(counts) > COMPARISONS:
        counts.index_add_(0, classes, torch.full_like(classes, times))
    else:
        counts += times * (classes.unsqueeze(1) == torch.arange(len(counts), device=counts.device)).sum(0)
