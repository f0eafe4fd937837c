"""Pairflip: one fixed confusion, of each class with the next or of each landmark with another."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import (
    Corrupted,
    choose_rows,
    count_classes,
    replace_rows,
    serves,
    task_of,
)
from gradsieve.errors import InputError


@serves("classification", "regression")
def pairflip(
    inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator, classes: int | None = None
) -> Corrupted:
    """Give the chosen rows the next class, or (regression) swap their landmarks in one fixed way."""
    rows = choose_rows(rate, len(targets), generator)
    if task_of(targets) == "regression":
        return replace_rows(targets, rows, targets[rows][:, derangement(targets.shape[1])])
    return replace_rows(targets, rows, (targets[rows].long() + 1) % count_classes(targets, classes))


def derangement(columns: int) -> Tensor:
    """Which column each column takes its value from, never itself.

    The paper says only that landmarks are confused in pairs. An even number of columns, at least four, is taken as
    points (x, y), which are shifted cyclically by half their number: of CelebA's five, the eyes get the mouth's place.
    """
    if columns == 1:
        raise InputError("pairflip swaps target columns, but there is only one. Try signflip or uninoise.")
    if columns % 2 or columns < 4:
        return torch.arange(columns).roll(1)
    points = torch.arange(columns).view(-1, 2)  # (points, 2)
    return points.roll(len(points) // 2, dims=0).flatten()
