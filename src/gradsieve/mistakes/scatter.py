"""Robust scales of real-valued targets and of their residuals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FLOOR = 0.05  # least scale of residuals, in that of the targets: a network that memorizes rows leaves none to measure
SAMPLE = 2**16  # rows from which scales are estimated, at most
PART = 2**16  # rows processed at a time, so that temporary arrays stay small
NORMAL_MAD = 1.4826022185056018  # a normal distribution's standard deviation in median absolute deviations


def spread(values: Array) -> Array:
    """(q,) the robust standard deviation of each column of ``values`` (N, q); 1 for a column that does not vary.

    If more than half of a column is one value, such as 0, it is the others' deviation from that value.
    """
    away = np.abs(values - np.median(values, axis=0))
    found = np.median(away, axis=0)
    for column in np.flatnonzero(found == 0):
        others = away[away[:, column] > 0, column]
        found[column] = np.median(others) if len(others) else 1 / NORMAL_MAD
    return NORMAL_MAD * found


def residual_scale(given: Array, expected: Array, trusted: NDArray[np.bool_]) -> Array:
    """(q,) the robust standard deviation of ``trusted`` rows' residuals, from given and expected targets (N, q)."""
    return NORMAL_MAD * typical_residual(given, expected, trusted)


def typical_residual(given: Array, expected: Array, trusted: NDArray[np.bool_]) -> Array:
    """(q,) their median absolute residual, but no less than the floor."""
    rows = np.flatnonzero(trusted) if trusted.any() else np.arange(len(given))
    rows = sample(rows)
    found = np.median(np.abs(given[rows] - expected[rows]), axis=0)
    return np.maximum(found, FLOOR / NORMAL_MAD * spread(given[rows]))


def sample(rows: NDArray[Any]) -> NDArray[Any]:
    """At most about ``SAMPLE`` of the rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // SAMPLE))]


def parts(rows: int) -> Iterator[slice]:
    """Slices of ``PART`` rows."""
    return (slice(start, start + PART) for start in range(0, rows, PART))


def root_mean_square(deviations: Array) -> Array:
    """(n,) over the outputs (n, q)."""
    with np.errstate(over="ignore"):
        return np.sqrt(np.mean(deviations**2, axis=1))
