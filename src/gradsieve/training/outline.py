"""Whether rows are those of a run, on whatever machine they are read again.

Machines round differently when they draw, scale or corrupt rows, so that a SHA-256 of the same rows may be another one
elsewhere. Two sums are hardly moved by that, but change with the rows and with their order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradsieve.data import Rows
from gradsieve.training.feed import as_float

GOLDEN = 0.6180339887498949  # of its multiples, what follows the point is spread evenly, and no two are alike
ROUNDING = 1e-4  # how far it may move a sum of amounts or pixels: ten times what it does to drawn faces,
EXACTLY = 1e-9  # and one of classes, which nothing rounds but the sum itself
PART = 1024  # rows


def outline(rows: Rows) -> list[float]:
    """A sum of the inputs and one of the targets."""
    return [weighed_sum(rows.inputs), weighed_sum(rows.targets)]


def is_outlined(rows: Rows, known: Any) -> bool:
    """Whether rows have the outline that a file says, but for rounding."""
    if not isinstance(known, list) or len(known) != 2 or not all(isinstance(each, float) for each in known):
        return False
    limits = ROUNDING, ROUNDING if rows.targets.is_floating_point() else EXACTLY
    return all(abs(own - each) <= limit for own, each, limit in zip(outline(rows), known, limits, strict=True))


def weighed_sum(values: Tensor) -> float:
    """The sum of all values, each with a weight of its own, over their norm."""
    of_row, of_column = weights(len(values)), weights(values[0].numel())
    total = square = 0.0
    for part, own in zip(values.split(PART), of_row.split(PART), strict=True):
        table = as_float(part).reshape(len(part), -1).double()
        total += float(own @ table @ of_column)
        square += float(table.square().sum())
    return total / math.sqrt(square) if square else 0.0


def weights(count: int) -> Tensor:
    """(count,) different numbers from -1 to 1."""
    return (torch.arange(1, count + 1, dtype=torch.float64) * GOLDEN).frac() * 2 - 1
