"""Whether a computation is being traced for a compiler, which makes some forms faster that are slower without it."""

from __future__ import annotations

import torch
from torch import Tensor

FEW_ROWS = 4096  # rows up to which comparing all pairs is faster than sorting, in a compiled program on an H200


def is_traced(values: Tensor) -> bool:
    """Whether ``values`` are placeholders of a trace, not the tensors of a computation."""
    return type(values) is not Tensor or torch.compiler.is_compiling()


def compares_pairs(values: Tensor) -> bool:
    """Whether to compare all pairs of rows: a compiler fuses that into one kernel, but not sorts and scatters."""
    return is_traced(values) and values.shape[0] <= FEW_ROWS
