"""Wrong real-valued targets that the networks of a race are too coarse to see.

Every candidate learns from some of the rows, and of these only the right ones teach it anything. With all rows, all of
them right, its residuals would be smaller, and smaller mistakes would show. By how much is read from a learning curve:
a network that learns from a quarter of the rows has larger residuals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradsieve.choosing.estimate import FAR, REACH, SHELL, distances, honest_error, tolerance
from gradsieve.choosing.reading import Array

SURELY = 4.0  # honest root mean squares: a row beyond them is surely wrong, even where honest tails are long
STEEPEST = 0.5  # residuals do not fall faster than this power of the number of rows, as the error of a mean does
WORTH = 0.01  # of the rows: if they could not change the estimate by more, a learning curve is not worth its training


def finer(answers: Array, lesser: Array, given: NDArray, fewer: float, right: float) -> float:
    """How much smaller honest residuals would be if a network learned from all rows, all of them right, as a factor.

    ``answers`` are of a network that learned from rows of which as many are right as the share ``right`` of all rows;
    ``lesser`` are of one that learned from the share ``fewer`` of these. Residuals are taken to be a power of the
    number of rows.
    """
    ratio = honest_error(lesser, given) / max(honest_error(answers, given), np.finfo(np.float64).tiny)
    power = np.log(max(ratio, 1.0)) / np.log(1 / fewer)
    return float(right ** min(power, STEEPEST))


def counts(answers: Array, given: NDArray, factor: float) -> Array:
    """(N,) how many wrong rows each row stands for, down to mistakes that residuals smaller by ``factor`` would show.

    A row that lies far off stands for itself. Nearer by, honest rows lie among the wrong ones, which are taken to be as
    dense there as in the shell just beyond: each row of that shell stands for some of them.
    """
    outputs, error, residual = given.shape[1], honest_error(answers, given), distances(answers, given)
    surely = max(SURELY * error, tolerance(given))
    least = min(surely, max(FAR * factor * error, tolerance(given)))
    is_far = (residual > surely).astype(np.float64)
    reach = REACH * error
    if not reach:  # most rows are met exactly
        return is_far
    is_shell = (residual > reach) & (residual <= SHELL * reach)
    return is_far + is_shell * (surely**outputs - least**outputs) / ((SHELL**outputs - 1) * reach**outputs)


def is_worth_it(answers: Array, given: NDArray, weights: Array, right: float) -> bool:
    """Whether a learning curve may change the estimate."""
    most = counts(answers, given, right**STEEPEST) - counts(answers, given, 1.0)
    return bool(most @ weights > WORTH * weights.sum())
