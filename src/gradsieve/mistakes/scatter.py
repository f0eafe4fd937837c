"""How far the given targets of a regression lie from what is expected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FLOOR = 0.05  # of the spread of the targets: a network that knows its rows by heart leaves no residual to measure
SAMPLE = 2**16  # rows that others are measured by
PART = 2**16  # rows looked at together, where there are many
NORMAL_MAD = 1.4826022185056018  # standard deviations of a normal distribution in its median absolute deviation


def spread(values: Array) -> Array:
    """(q,) the robust standard deviation of each column of ``values`` (N, q); 1 for a column that does not vary.

    Where more than half of a column is one value, as where most rows are 0, it is that of the others from it.
    """
    away = np.abs(values - np.median(values, axis=0))
    found = np.median(away, axis=0)
    for column in np.flatnonzero(found == 0):
        others = away[away[:, column] > 0, column]
        found[column] = np.median(others) if len(others) else 1 / NORMAL_MAD
    return NORMAL_MAD * found


def residual_scale(given: Array, expected: Array, trusted: NDArray[np.bool_]) -> Array:
    """(q,) how far the given targets (N, q) of ``trusted`` rows lie from the expected ones, as standard deviations."""
    return NORMAL_MAD * typical_residual(given, expected, trusted)


def typical_residual(given: Array, expected: Array, trusted: NDArray[np.bool_]) -> Array:
    """(q,) the same as the median of how far they lie off."""
    rows = np.flatnonzero(trusted) if trusted.any() else np.arange(len(given))
    rows = some(rows)
    found = np.median(np.abs(given[rows] - expected[rows]), axis=0)
    return np.maximum(found, FLOOR / NORMAL_MAD * spread(given[rows]))


def some(rows: NDArray[Any]) -> NDArray[Any]:
    """Every so many of the rows, where there are more than are needed to measure them all by."""
    return rows[:: max(1, -(-len(rows) // SAMPLE))]


def parts(rows: int) -> Iterator[slice]:
    """So many rows at a time that what is computed on the way is small beside all of them."""
    return (slice(start, start + PART) for start in range(0, rows, PART))


def size(deviations: Array) -> Array:
    """Root mean square over the outputs."""
    with np.errstate(over="ignore"):
        return np.sqrt(np.mean(deviations**2, axis=1))
