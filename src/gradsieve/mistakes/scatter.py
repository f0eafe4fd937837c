"""How far the given targets of a regression lie from what is expected, and which outputs of a row are off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

OFF = 4.0  # robust standard deviations of an output's residual, where there is one output
FLOOR = 0.05  # of the spread of the targets: a network that knows its rows by heart leaves no residual to measure
SAMPLE = 2**16  # rows that others are measured by
PART = 2**16  # rows looked at together, where there are many
NORMAL_MAD = 1.4826022185056018  # standard deviations of a normal distribution in its median absolute deviation


def spread(values: Array) -> Array:
    """(q,) the robust standard deviation of each column of ``values`` (N, q); 1 for a column that does not vary."""
    found = NORMAL_MAD * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return np.where(found > 0, found, 1.0)


def residual_scale(given: Array, expected: Array, trusted: NDArray[np.bool_]) -> Array:
    """(q,) how far the given targets (N, q) of ``trusted`` rows lie from the expected ones, as standard deviations."""
    rows = np.flatnonzero(trusted) if trusted.any() else np.arange(len(given))
    rows = some(rows)
    scale = NORMAL_MAD * np.median(np.abs(given[rows] - expected[rows]), axis=0)
    return np.maximum(scale, FLOOR * spread(given[rows]))


def some(rows: NDArray[Any]) -> NDArray[Any]:
    """Every so many of the rows, where there are more than are needed to measure them all by."""
    return rows[:: max(1, -(-len(rows) // SAMPLE))]


def parts(rows: int) -> Iterator[slice]:
    """So many rows at a time that what is computed on the way is small beside all of them."""
    return (slice(start, start + PART) for start in range(0, rows, PART))


def off_outputs(given: Array, expected: Array, scale: Array) -> NDArray[np.bool_]:
    """(N, q) whether an output is farther from the expected one than honest rows are.

    More standard deviations are allowed to one of many outputs: the largest of them is larger by chance.
    """
    limit = OFF * math.sqrt(1 + math.log(given.shape[1]) / 2)
    found = np.empty(given.shape, dtype=bool)
    for part in parts(len(given)):
        found[part] = np.abs(given[part] - expected[part]) > limit * scale
    return found


def size(deviations: Array) -> Array:
    """Root mean square over the outputs."""
    with np.errstate(over="ignore"):
        return np.sqrt(np.mean(deviations**2, axis=1))
