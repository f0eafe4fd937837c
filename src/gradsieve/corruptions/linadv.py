"""Linear adversary: wrong targets that follow the inputs, so that they look learnable."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, choose_rows, flat, replace_rows, serves


@serves("regression")
def linadv(inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator) -> Corrupted:
    """Replace the targets of the chosen rows by one random linear map of their inputs."""
    rows = choose_rows(rate, len(targets), generator)
    return replace_rows(targets, rows, linear(inputs, rows, targets.shape[1], generator))


def linear(inputs: Tensor, rows: Tensor, outputs: int, generator: torch.Generator) -> Tensor:
    """``inputs[rows] @ W`` with one W ~ N(0, 1) shared by all rows."""
    W = torch.randn(inputs[0].numel(), outputs, generator=generator)  # (features, outputs)
    # In chunks, to save memory: half of CIFAR as float32 takes 300 MB.
    return torch.cat([flat(inputs[chunk]) @ W for chunk in rows.split(4096)])  # (rows, outputs)
