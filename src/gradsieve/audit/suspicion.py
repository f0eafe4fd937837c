"""From scores to ranks, and to a suspicion in [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

SHARPNESS = 4  # an exponent: a score twice the threshold, about the largest of classes, gives 0.94; without it, 0.67


def by_suspicion(scores: Array) -> NDArray[np.int64]:
    """Row indices, the largest score first, ties by index; rows without a score (NaN) come last."""
    return np.argsort(-scores, kind="stable")


def ranks(scores: Array) -> NDArray[np.integer[Any]]:
    """(N,) each row's place in that order; 1 is the most suspect."""
    counting = np.int32 if len(scores) < 2**31 else np.int64  # half the memory
    places = np.empty(len(scores), dtype=counting)
    places[by_suspicion(scores)] = np.arange(1, len(scores) + 1, dtype=counting)
    return places


def suspicion(scores: Array, flagged: int) -> NDArray[np.float64]:
    """Scores (N,), not negative, as numbers in [0, 1] in the same order: the ``flagged`` largest get 0.5 and more.

    It is 1 / (1 + (threshold / score)^4), with the threshold half way between the last row that is flagged and the
    first that is not. A row without a score (NaN) has 0.
    """
    between = threshold(scores, flagged)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = np.divide(between, scores, dtype=np.float64)
        found **= SHARPNESS
        found += 1
        np.reciprocal(found, out=found)  # in place, to save memory
    found[scores == np.inf] = 1.0
    return np.nan_to_num(found, copy=False, nan=0.0)


def threshold(scores: Array, flagged: int) -> float:
    """Half way between the ``flagged`` largest scores and the others."""
    known = scores[np.isfinite(scores)]
    known.sort()
    if not len(known):
        return 1.0
    place = min(max(int((~np.isnan(scores)).sum()) - flagged, 0), len(known))  # finite scores below the threshold
    below = known[place - 1] if place else 0.0
    above = known[place] if place < len(known) else 3 * known[-1]
    return float((below + above) / 2)
