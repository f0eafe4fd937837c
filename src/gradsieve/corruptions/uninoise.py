"""Uniform noise: targets that have nothing to do with their inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, choose_rows, replace_rows, serves


@serves("regression")
def uninoise(inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator) -> Corrupted:
    """Draw the (standardised) targets of the chosen rows from U[-5, 5]."""
    rows = choose_rows(rate, len(targets), generator)
    return replace_rows(targets, rows, uniform(len(rows), targets.shape[1], generator))


def uniform(rows: int, outputs: int, generator: torch.Generator) -> Tensor:
    """U[-5, 5]: five standard deviations to each side, as targets are standardised."""
    return 10 * torch.rand(rows, outputs, generator=generator) - 5  # (rows, outputs)
