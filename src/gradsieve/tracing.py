"""Whether a compiler follows what is computed: it makes some forms faster that are slower run as they stand."""

from __future__ import annotations

import torch
from torch import Tensor

FEW_ROWS = 4096  # up to here comparing all pairs is faster than sorting, on an H200


def is_traced(values: Tensor) -> bool:
    """Whether ``values`` only stand for what a program will compute."""
    return type(values) is not Tensor or torch.compiler.is_compiling()


def compares_pairs(values: Tensor) -> bool:
    """Whether to compare all pairs of rows: one kernel for a compiler, which has none for sorts and scatters."""
    return is_traced(values) and values.shape[0] <= FEW_ROWS
