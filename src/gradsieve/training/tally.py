"""An epoch's counts, kept on the device and read once at its end.

Which rows are corrupted is used here only, to count them: no method sees it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gradsieve.arguments import argument
from gradsieve.method import Selection

FORSAKEN = 0.2  # a class is forsaken if its kept share is below this fraction of the kept share of all rows
HARDLY_ANY = 0.1  # no class counts as forsaken if less than this share of all rows is kept, as by min-sgd
ENOUGH = 50  # rows that a class needs to be judged forsaken
COMPARISONS = 2**20  # rows x classes above which index_add_ is faster than comparing each row with each class


@dataclass
class Tally:
    """The counts of an epoch: its loss, and how many rows were kept."""

    loss: Tensor  # the sum over all steps of all networks
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
        """Count rows that an epoch left out as a whole: seen, and not kept."""
        if len(self.seen_of_class):
            add_counts(self.seen_of_class, targets, networks)

    def clear(self) -> None:
        """Start another epoch, in the same memory, since a captured step writes there."""
        for tensor in self.tensors().values():
            tensor.zero_()

    def read(self) -> dict[str, Any]:
        """The figures of the epoch for its record."""
        kept = int(self.kept)
        figures: dict[str, Any] = {
            "loss": float(self.loss) / max(1, int(self.steps)),
            "purity": 1 - int(self.kept_corrupted) / kept if kept else math.nan,
        }
        if len(self.seen_of_class):  # so that a class that vanishes is noticed
            figures["kept_share_of_class"] = (self.kept_of_class / self.seen_of_class.clamp(min=1)).tolist()
        return figures

    def forsaken(self) -> str:
        return forsaken(self.seen_of_class, self.kept_of_class)

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def add_counts(counts: Tensor, classes: Tensor, times: int = 1) -> None:
    """Add how often each class occurs. (``bincount`` would wait for the device, to read the largest class.)"""
    if len(classes) * len(counts) > COMPARISONS:
        counts.index_add_(0, classes, torch.full_like(classes, times))
    else:
        counts += times * (classes.unsqueeze(1) == torch.arange(len(counts), device=counts.device)).sum(0)


def forsaken(seen: Tensor, kept: Tensor, names: Sequence[Any] | None = None) -> str:
    """A warning if nearly all rows of a class were dropped, from the counts of each class; else empty.

    A network that has learned little prefers some classes. It keeps their rows and learns from them alone, and the
    others never come back. A class that is rarer than the drop rate may be dropped as a whole.
    """
    if not (seen >= ENOUGH).any():
        return ""
    of_all, of_class = float(kept.sum() / seen.sum()), torch.where(seen >= ENOUGH, kept / seen.clamp(min=1), 1.0)
    least = int(of_class.argmin())
    if of_class[least] >= FORSAKEN * of_all or of_all < HARDLY_ANY:
        return ""
    name = least if names is None else names[least]
    return (
        f"{of_class[least]:.0%} of the rows of class {name} were kept, and {of_all:.0%} of all. If not so many of them "
        f"can be wrong, trim every class alike ({argument('method_options', {'balanced': True})}), drop far less than "
        f"the share of that class ({argument('drop_rate')}), or let the rate rise more slowly ({argument('ramp')})."
    )
