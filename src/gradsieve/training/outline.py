"""Whether rows are those that a run was trained on, even on another machine.

Machines round differently when they draw, scale or corrupt rows, so the same rows may have another SHA-256 elsewhere.
Two weighted sums hardly change with rounding, but do change with the rows and their order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradsieve.data import Rows
from gradsieve.training.feed import as_float

GOLDEN = 0.6180339887498949  # golden ratio - 1: the fractional parts of its multiples are all different, spread evenly
ROUNDING = 1e-4  # most difference by rounding in a sum of real values or pixels: ten times that of drawn faces
EXACTLY = 1e-9  # most difference in a sum of classes, which are whole numbers: only the sum itself rounds
PART = 1024  # rows converted to float64 at a time, to save memory


def outline(rows: Rows) -> list[float]:
    """One weighted sum of the inputs and one of the targets."""
    return [weighed_sum(rows.inputs), weighed_sum(rows.targets)]


def is_outlined(rows: Rows, known: Any) -> bool:
    """Whether rows have the outline ``known`` from a file, up to rounding."""
    if not isinstance(known, list) or len(known) != 2 or not all(isinstance(each, float) for each in known):
        return False
    limits = ROUNDING, ROUNDING if rows.targets.is_floating_point() else EXACTLY
    return all(abs(own - each) <= limit for own, each, limit in zip(outline(rows), known, limits, strict=True))


def weighed_sum(values: Tensor) -> float:
    """The sum of all values, each with its own weight, divided by their Euclidean norm."""
    of_row, of_column = weights(len(values)), weights(values[0].numel())
    total = square = 0.0
    for part, own in zip(values.split(PART), of_row.split(PART), strict=True):
        table = as_float(part).reshape(len(part), -1).double()
        total += float(own @ table @ of_column)
        square += float(table.square().sum())
    return total / math.sqrt(square) if square else 0.0


def weights(count: int) -> Tensor:
    """(count,) different weights between -1 and 1."""
    return (torch.arange(1, count + 1, dtype=torch.float64) * GOLDEN).frac() * 2 - 1
