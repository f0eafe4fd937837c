"""Inputs without their correlations, for real-valued targets of which some are wrong.

If columns are correlated, the information may lie in small differences between them. A network finds these late, and
until then it learns wrong targets that follow the columns themselves. So inputs are transformed to vary alike in every
direction. For classes this is not used: networks learn them fast anyway, and memorize wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.errors import InputError

LEAST = 0.1  # of the mean variance, added to each: a direction of little variance is mostly rounding errors
MOST_COLUMNS = 1000  # with more, correlations stay: the matrix would cost too much
BLOCK = 2**17  # values processed at a time, to fit into a cache

# Inputs and matrix are rounded to multiples of a step, because sums of whole numbers are exact: then nothing depends on
# the order of the rows, a row's result does not depend on the rows beside it, and hardly on the hardware.
GRID = 1024  # steps in a unit, for inputs from which correlations are learned
FARTHEST = 8  # units at which these are clipped
FINE = 2**22  # steps in a unit, for inputs that are transformed: the precision of float32 at 3, where they are clipped
ROUGH = 2**16  # steps in 1, for the matrix


@dataclass(frozen=True)
class Decorrelation:
    """A linear transform of centred inputs."""

    centre: NDArray[np.float64]  # (d,)
    matrix: NDArray[np.float64]  # (d, d)

    def apply(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Transform scaled inputs (N, d)."""
        found = np.empty(inputs.shape, dtype=np.float32)
        for part in blocks(inputs):
            found[part] = np.rint((inputs[part] - self.centre) * FINE) @ self.matrix / FINE
        return found


def decorrelation(inputs: NDArray[Any], weights: NDArray[Any] | None = None) -> Decorrelation | None:
    """Learn to remove the correlations of scaled inputs (N, d) with the least change to them (ZCA); None if there are
    too many columns."""
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
    # The total variance stays, so that uncorrelated inputs stay what they were.
    size = np.sqrt(variances.sum() / (variances / shrunk).sum())
    matrix = size * (directions / np.sqrt(shrunk)) @ directions.T
    return Decorrelation(centre / GRID, np.rint(matrix * ROUGH) / ROUGH)


def blocks(inputs: NDArray[Any]) -> Iterator[slice]:
    """Slices of rows that are processed together."""
    step = max(1, BLOCK // max(1, inputs.shape[1]))
    return (slice(start, start + step) for start in range(0, len(inputs), step))


def check_decorrelate(decorrelate: Any, otherwise: bool) -> bool:
    """Whether to decorrelate: as given, or ``otherwise`` if that is "auto"."""
    if isinstance(decorrelate, str) and decorrelate == "auto":
        return otherwise
    if not isinstance(decorrelate, bool | np.bool_):
        raise InputError(f"decorrelate is {decorrelate!r}, but must be True, False or 'auto'.")
    return bool(decorrelate)
