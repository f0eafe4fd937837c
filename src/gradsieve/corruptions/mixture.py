"""Mixture: three kinds of wrong targets at once, as real errors come."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, choose_rows, replace_rows, serves
from gradsieve.corruptions.linadv import linear
from gradsieve.corruptions.uninoise import uniform


@serves("regression")
def mixture(inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator) -> Corrupted:
    """Split the chosen rows evenly over linadv, signflip and uninoise."""
    rows = choose_rows(rate, len(targets), generator)
    follow, flip, noise = rows.tensor_split(3)
    followed = linear(inputs, follow, targets.shape[1], generator)
    noisy = uniform(len(noise), targets.shape[1], generator)
    return replace_rows(targets, rows, torch.cat([followed, -targets[flip], noisy]))
