"""No corruption: the clean run that every other one is measured against."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, serves


@serves("classification", "regression")
def none(
    inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator, classes: int | None = None
) -> Corrupted:
    """Leave every target as it is, whatever the rate."""
    return Corrupted(targets.clone(), torch.zeros(len(targets), dtype=torch.bool))
