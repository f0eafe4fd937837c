"""Inputs without their correlations, for networks that learn amounts through wrong ones.

Where columns go together, what tells rows apart may lie in small differences between them. A network finds these late,
and until then it learns wrong amounts that follow the columns themselves. Stretched so that every direction varies
alike, inputs show all that they have from the start. Classes are learnt fast as it is, and wrong ones by heart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.errors import InputError

LEAST = 0.1  # of the mean variance, added to each: a direction in which rows hardly differ is mostly rounding
MOST_COLUMNS = 1000  # with more, their correlations cost more than they are worth
GRID = 1024  # inputs are counted in this part of their unit, and up to
FARTHEST = 8  # units: sums of whole numbers are exact, whatever the order of the rows
BLOCK = 2**16  # rows at a time


@dataclass(frozen=True)
class Decorrelation:
    """Inputs about their mean, times a matrix."""

    centre: NDArray[np.float64]  # (d,)
    matrix: NDArray[np.float64]  # (d, d)

    def apply(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Scaled inputs (N, d) without the correlations of those that this was learnt from."""
        found = np.empty(inputs.shape, dtype=np.float32)
        for start in range(0, len(inputs), BLOCK):
            # Not a product of matrices: a row's numbers must not depend on the rows beside it.
            found[start : start + BLOCK] = np.einsum(
                "nd,de->ne", inputs[start : start + BLOCK] - self.centre, self.matrix
            )
        return found


def decorrelation(inputs: NDArray[Any], weights: NDArray[Any] | None = None) -> Decorrelation | None:
    """What takes the correlations out of scaled inputs (N, d) and leaves them as near to themselves as that allows
    (ZCA); None where there are too many columns."""
    columns = inputs.shape[1]
    if columns > MOST_COLUMNS:
        return None
    weight, total, squares = 0.0, np.zeros(columns), np.zeros((columns, columns))
    for start in range(0, len(inputs), BLOCK):
        part = np.rint(np.clip(inputs[start : start + BLOCK].astype(np.float64), -FARTHEST, FARTHEST) * GRID)
        weighed = part if weights is None else part * weights[start : start + BLOCK, None]
        weight += len(part) if weights is None else float(weights[start : start + BLOCK].sum())
        total, squares = total + weighed.sum(0), squares + weighed.T @ part
    centre = total / weight
    variances, directions = np.linalg.eigh(squares / weight - np.outer(centre, centre))
    variances = np.maximum(variances, 0) / GRID**2
    if not variances.any():
        return Decorrelation(centre / GRID, np.eye(columns))
    shrunk = variances + LEAST * variances.mean()
    # All together vary as much as before: inputs that do not go together stay what they were.
    size = np.sqrt(variances.sum() / (variances / shrunk).sum())
    return Decorrelation(centre / GRID, size * (directions / np.sqrt(shrunk)) @ directions.T)


def check_decorrelate(decorrelate: Any, otherwise: bool) -> bool:
    """Whether to: as given, or as is right ``otherwise`` where that is "auto"."""
    if isinstance(decorrelate, str) and decorrelate == "auto":
        return otherwise
    if not isinstance(decorrelate, bool | np.bool_):
        raise InputError(f"decorrelate is {decorrelate!r}, but must be True, False or 'auto'.")
    return bool(decorrelate)
