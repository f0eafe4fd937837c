"""What happened to a wrong target of several numbers: which of them are off, and how, where that is plain.

Each kind is a guess at how the given numbers came from the expected ones. It is named where what it leaves
unexplained is no more than an honest row may differ by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

OFF = 4.0  # robust standard deviations of an output's residual, where there is one output
FLOOR = 0.05  # of the spread of the targets: a network that knows its rows by heart leaves no residual to measure
PLAIN = 5.0  # root mean square of what a kind leaves unexplained, in standard deviations
NORMAL_MAD = 1.4826022185056018  # standard deviations of a normal distribution in its median absolute deviation
POWERS_OF_TEN = (10.0, 100.0, 1000.0, 0.1, 0.01, 0.001)  # a slip of units


def residual_scale(given: Array, expected: Array, trusted: NDArray[np.bool_]) -> Array:
    """(q,) how far the given targets (N, q) of ``trusted`` rows lie from the expected ones, as standard deviations."""
    rows = trusted if trusted.any() else np.ones(len(given), dtype=bool)
    honest = given[rows]
    scale = NORMAL_MAD * np.median(np.abs(honest - expected[rows]), axis=0)
    spread = NORMAL_MAD * np.median(np.abs(honest - np.median(honest, axis=0)), axis=0)
    return np.maximum(np.maximum(scale, FLOOR * spread), np.finfo(np.float64).tiny)


def off_outputs(given: Array, expected: Array, scale: Array) -> NDArray[np.bool_]:
    """(N, q) whether an output is farther from the expected one than honest rows are."""
    return np.abs(given - expected) > off_limit(given.shape[1]) * scale


def off_limit(outputs: int) -> float:
    """How many standard deviations are too far: more for many outputs, the largest of which is larger by chance."""
    return OFF * math.sqrt(1 + math.log(outputs) / 2)


def error_kinds(given: Array, expected: Array, scale: Array) -> NDArray[np.object_]:
    """(n,) the kind of error of rows that are known to be wrong: "random" where no other kind is plain."""
    names = np.array([*KINDS, "random"], dtype=object)
    unexplained = np.stack([kind(given, expected, scale) for kind in KINDS.values()])  # (kinds, n)
    return names[np.where(unexplained.min(0) <= PLAIN, unexplained.argmin(0), len(KINDS))]


def sign_flipped(given: Array, expected: Array, scale: Array) -> Array:
    """What is left if all numbers are multiplied by one factor below 0: root mean square, in standard deviations."""
    if given.shape[1] == 1:
        return size((given + expected) / scale)
    factor, left = common_factor(given, expected, scale)
    return np.where(factor < 0, left, np.inf)


def scaled(given: Array, expected: Array, scale: Array) -> Array:
    """What is left if all numbers are multiplied by one factor above 0; a single number only by a power of ten."""
    if given.shape[1] == 1:
        return np.minimum.reduce([size((given - ten * expected) / (ten * scale)) for ten in POWERS_OF_TEN])
    factor, left = common_factor(given, expected, scale)
    return np.where(factor > 0, left, np.inf)


def common_factor(given: Array, expected: Array, scale: Array) -> tuple[Array, Array]:
    """(n,) the factor that takes the expected numbers nearest to the given ones, and what is then left."""
    weight = 1 / scale**2
    power = np.maximum((weight * expected**2).sum(1), np.finfo(np.float64).tiny)
    factor = (weight * given * expected).sum(1) / power
    # The noise is multiplied too; a factor of nothing explains nothing.
    spread = np.maximum(np.abs(factor), np.finfo(np.float64).tiny)[:, None] * scale
    with np.errstate(over="ignore"):
        return factor, size((given - factor[:, None] * expected) / spread)


def swapped(given: Array, expected: Array, scale: Array) -> Array:
    """What is left if the numbers are right, but in another order.

    The order that fits best matches the smallest with the smallest, and so on: it is found by sorting.
    """
    if given.shape[1] == 1:
        return np.full(len(given), np.inf)
    order = np.argsort(expected, axis=1, kind="stable")
    return size((np.sort(given, axis=1) - np.take_along_axis(expected, order, 1)) / scale[order])


def size(deviations: Array) -> Array:
    """Root mean square over the outputs."""
    with np.errstate(over="ignore"):
        return np.sqrt(np.mean(deviations**2, axis=1))


KINDS: dict[str, Callable[[Any, Any, Any], Array]] = {
    "sign flipped": sign_flipped,
    "scaled": scaled,
    "swapped": swapped,
}
