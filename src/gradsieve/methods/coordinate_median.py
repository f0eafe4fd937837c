"""Coordinate-wise median of the rows' gradients: the naive estimator for general corruption (section 3.2).

1. Take each row's gradient over all parameters.
2. For each parameter, take the median over the rows.
3. Update with these medians.

The error grows with the square root of the number of parameters, which is why the paper looks further. It is also slow:
it takes a median over the batch for every parameter, and memory for rows x the largest parameter.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.method import Method, Selection, require_own_rows
from gradsieve.scores.memory import require_memory, row_gradient_bytes
from gradsieve.scores.row_gradients import row_pass, store_gradient
from gradsieve.tracing import is_traced


class CoordinateMedian(Method):
    """Update each parameter by the median of the rows' gradients."""

    def require(self, network: nn.Module, rows: int, device: torch.device) -> None:
        require_own_rows("coordinate-median", network, "train")
        needed = 2 * row_gradient_bytes(network, rows)
        require_memory(
            f"coordinate-median: the gradients of {rows} rows for the largest parameter, and a copy", needed, device
        )

    def step(self, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, drop_rate: float) -> list[Selection]:
        (network,) = networks
        rows = row_pass(network, self.losses, inputs, targets)
        medians = {name: middle(ranks.gather_rows([shares]).values[0]) for name, shares in rows.by_parameter()}
        # Every rank has the whole gradient, and the ranks' gradients will be added up.
        store_gradient(network, {name: each * ranks.is_first() for name, each in medians.items()})
        loss = rows.losses.sum() / ranks.total(len(targets), targets.device)
        return [Selection(None, torch.arange(len(targets), device=targets.device), loss)]


def middle(values: Tensor) -> Tensor:
    """The median over the first dimension, halfway between the middle two if their number is even."""
    if values.is_complex():
        return torch.view_as_complex(middle(torch.view_as_real(values)))
    if values.is_cpu and not is_traced(values):
        return torch.from_numpy(middle_by_sorting(values.numpy()))
    values = values.contiguous()  # torch's median of an expanded tensor is undefined
    lower, upper = values.median(dim=0).values, -values.neg().median(dim=0).values  # torch's is the lower one
    return (lower + upper) / 2


def middle_by_sorting(values: NDArray) -> NDArray:
    """The same by numpy, which sorts many short rows with vector instructions, far faster than torch's median."""
    columns = np.array(np.moveaxis(values, 0, -1), order="C")
    columns.sort(axis=-1)
    count = columns.shape[-1]
    halfway = (columns[..., (count - 1) // 2] + columns[..., count // 2]) / 2
    return np.where(np.isnan(columns[..., -1]), columns[..., -1], halfway)  # NaN sorts last: one makes the median NaN
