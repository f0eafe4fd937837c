"""Sign flip: the target on the other side of the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, choose_rows, replace_rows, serves


@serves("regression")
def signflip(inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator) -> Corrupted:
    """Negate the (standardised) targets of the chosen rows."""
    rows = choose_rows(rate, len(targets), generator)
    return replace_rows(targets, rows, -targets[rows])
