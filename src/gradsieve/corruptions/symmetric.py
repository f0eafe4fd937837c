"""Symmetric label noise: a wrong class, each with the same chance."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, choose_rows, count_classes, replace_rows, serves


@serves("classification")
def symmetric(
    inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator, classes: int | None = None
) -> Corrupted:
    """Give the chosen rows a wrong class, each of the others with the same chance."""
    classes = count_classes(targets, classes)
    rows = choose_rows(rate, len(targets), generator)
    steps = torch.randint(1, classes, (len(rows),), generator=generator)  # never 0: the new class is wrong
    return replace_rows(targets, rows, (targets[rows] + steps) % classes)
