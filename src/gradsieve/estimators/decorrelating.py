"""Inputs without their correlations, for networks that learn amounts through wrong ones.

Where columns go together, what tells rows apart may lie in small differences between them. A network finds these late,
and until then it learns wrong amounts that follow the columns themselves. Stretched so that every direction varies
alike, inputs show all that they have from the start. Classes are learnt fast as it is, and wrong ones by heart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.errors import InputError

LEAST = 0.1  # of the mean variance, added to each: a direction in which rows hardly differ is mostly rounding
MOST_COLUMNS = 1000  # with more, their correlations cost more than they are worth
BLOCK = 2**17  # values at a time, few enough for a cache

# Inputs and matrix are rounded to whole parts. Sums of whole numbers are exact: nothing depends on the order of rows,
# a row's numbers do not depend on the rows beside it, and hardly on the machine.
GRID = 1024  # parts of a unit, of inputs that are learnt from
FARTHEST = 8  # units, of the same
FINE = 2**22  # parts of a unit, of inputs that are mixed: as float32 has them at 3, where they are clipped
ROUGH = 2**16  # parts of one, of the matrix


@dataclass(frozen=True)
class Decorrelation:
    """Inputs about their mean, times a matrix."""

    centre: NDArray[np.float64]  # (d,)
    matrix: NDArray[np.float64]  # (d, d)

    def apply(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Scaled inputs (N, d) without the correlations of those that this was learnt from."""
        found = np.empty(inputs.shape, dtype=np.float32)
        for part in blocks(inputs):
            found[part] = np.rint((inputs[part] - self.centre) * FINE) @ self.matrix / FINE
        return found


def decorrelation(inputs: NDArray[Any], weights: NDArray[Any] | None = None) -> Decorrelation | None:
    """What takes the correlations out of scaled inputs (N, d) and leaves them as near to themselves as that allows
    (ZCA); None where there are too many columns."""
    columns = inputs.shape[1]
    if columns > MOST_COLUMNS:
        return None
    weight, total, squares = 0.0, np.zeros(columns), np.zeros((columns, columns))
    for part in blocks(inputs):
        counts = np.rint(np.clip(inputs[part].astype(np.float64), -FARTHEST, FARTHEST) * GRID)
        weighed = counts if weights is None else counts * weights[part, None]
        weight += len(counts) if weights is None else float(weights[part].sum())
        total, squares = total + weighed.sum(0), squares + weighed.T @ counts
    centre = total / weight
    variances, directions = np.linalg.eigh(squares / weight - np.outer(centre, centre))
    variances = np.maximum(variances, 0) / GRID**2
    if not variances.any():
        return Decorrelation(centre / GRID, np.eye(columns))
    shrunk = variances + LEAST * variances.mean()
    # All together vary as much as before: inputs that do not go together stay what they were.
    size = np.sqrt(variances.sum() / (variances / shrunk).sum())
    matrix = size * (directions / np.sqrt(shrunk)) @ directions.T
    return Decorrelation(centre / GRID, np.rint(matrix * ROUGH) / ROUGH)


def blocks(inputs: NDArray[Any]) -> Iterator[slice]:
    """Rows that are taken together."""
    step = max(1, BLOCK // max(1, inputs.shape[1]))
    return (slice(start, start + step) for start in range(0, len(inputs), step))


def check_decorrelate(decorrelate: Any, otherwise: bool) -> bool:
    """Whether to: as given, or as is right ``otherwise`` where that is "auto"."""
    if isinstance(decorrelate, str) and decorrelate == "auto":
        return otherwise
    if not isinstance(decorrelate, bool | np.bool_):
        raise InputError(f"decorrelate is {decorrelate!r}, but must be True, False or 'auto'.")
    return bool(decorrelate)
