"""What every corruption returns, and the part that all of them share: which rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gradsieve.counts import check_rate, part
from gradsieve.data.dataset import Task


class Corrupted(NamedTuple):
    """Targets after a corruption, and the truth about it, which is for metrics only."""

    targets: Tensor  # like the targets that came in
    is_corrupted: Tensor  # (N,) bool


class Corruption(Protocol):
    """A pure function that replaces the targets of exactly floor(rate * N) rows."""

    tasks: tuple[Task, ...]
    __doc__: str | None

    def __call__(
        self, inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator, **options: Any
    ) -> Corrupted: ...


def serves(*tasks: Task) -> Callable[[Any], Corruption]:
    """Declare which tasks a corruption is made for."""

    def mark(function: Any) -> Corruption:
        function.tasks = tasks
        return function

    return mark


def choose_rows(rate: float, rows: int, generator: torch.Generator) -> Tensor:
    """Exactly floor(rate * rows) row indices, drawn without replacement."""
    count = part(check_rate("rate", rate), rows)
    return torch.randperm(rows, generator=generator)[:count]


def replace_rows(targets: Tensor, rows: Tensor, values: Tensor) -> Corrupted:
    """``targets`` with ``values`` at ``rows``; the input stays as it was."""
    corrupted = targets.clone()
    corrupted[rows] = values.to(targets.dtype)
    is_corrupted = torch.zeros(len(targets), dtype=torch.bool)
    is_corrupted[rows] = True
    return Corrupted(corrupted, is_corrupted)
