"""Two rival networks that compete for the rows: they count wrong real-valued targets where these are nearly half.

Nearly as many wrong rows as right ones bend a network, even if it drops the rows with the largest residuals, and then
residuals no longer tell them apart. But wrong rows often have something in common: a sign, a swap, another formula. So
a second network learns what the first fits badly. Each row belongs to the one that fits it better, or to neither.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.choosing.ballot import Vote
from gradsieve.choosing.estimate import distances, honest_error, spread, tolerance
from gradsieve.choosing.judge import CLOSER, agree, median_residuals
from gradsieve.choosing.reading import Array, read_rows

# When rivals are trained: wrong rows may have bent the winner.
NEAR_HALF = 0.3  # the share of rows that is dropped or seems wrong, at least,
COARSE = 0.3  # or the winner's median residual, in interquartile ranges, at least,
MANY, ROUGH = 0.2, 0.2  # or both of them, at least
# When the two networks count as rivals.
FITS_CLOSELY = (
    0.45  # the second one's error at most, in interquartile ranges: above, it has no rule, only the rows left over
)
LEAST_PART = 0.1  # the second one's share of the rows, at least
APART = 1.2  # their distance at least, in sums of their errors: networks nearer to each other have divided noise
AS_CLOSE = 2.0  # the first one's error on honest rows at most, in the winner's: above, it has learned too little
# Which rows are wrong: those of the second network that also lie far from the first.
BEYOND = 3.0  # errors of the first network: none of its rows lies farther off
ASIDE = 0.5  # of the usual tolerance: less is needed, since siding with the second network is itself a sign
# The mixture by which rows are divided. Variances are in squares of interquartile ranges.
TAIL, WIDER = 0.15, 3.0  # the share of residuals in the long tail, and its standard deviation over the others'
FIRST_SHARES = (0.5, 0.3, 0.2)  # of the first network, the second and neither, before the first iteration
LEAST_SHARE, LEAST_VARIANCE = 0.005, 1e-4  # so that no part vanishes
CHANCE_VARIANCE = 0.04  # added to the variance of rows that belong to neither
TURNS = 80  # iterations


class Explained(NamedTuple):
    """How rows divide between two networks and neither."""

    belongs: Array  # (3, N) the probability that a row belongs to the first, the second, neither
    shares: Array  # (3,) the share of the rows of each
    errors: Array  # (2,) the root mean square residual of each network's own rows


def explain(rivals: Array, given: NDArray, weights: Array) -> Explained:
    """Fit a mixture to ``given`` (N, q) around two networks' predictions (2, N, q), by expectation maximization."""
    outputs = given.shape[1]
    squares = np.stack([distances(each, given) ** 2 for each in rivals]) / outputs  # (2, N)
    off_centre = ((given - np.median(given, 0)) ** 2).sum(1) / outputs
    by_chance = log_normal(off_centre, 2 * np.median(off_centre) + CHANCE_VARIANCE, outputs)
    # The nearest quarter of rows bounds a network's variance from above; without a bound it would claim all rows.
    most = np.array([spread(np.sqrt(each * outputs), outputs) ** 2 / outputs for each in squares])
    most = np.maximum(most, LEAST_VARIANCE)
    shares, variance, belongs = np.array(FIRST_SHARES), most, np.zeros((3, len(given)))
    with_tail = 1 - TAIL + TAIL * WIDER**2
    for _ in range(TURNS):
        near = log_normal(squares, variance[:, None], outputs) + np.log(1 - TAIL)
        far = log_normal(squares, variance[:, None] * WIDER**2, outputs) + np.log(TAIL)
        joint = np.concatenate([np.logaddexp(near, far), by_chance[None]]) + np.log(shares)[:, None]
        belongs = np.exp(joint - np.logaddexp.reduce(joint))
        shares = np.maximum(belongs @ weights / weights.sum(), LEAST_SHARE)
        own = belongs[:2] * weights
        variance = (own * squares).sum(1) / np.maximum(own.sum(1), 1) / with_tail
        variance = np.clip(variance, LEAST_VARIANCE, most)
    return Explained(belongs, shares, np.sqrt(variance * with_tail * outputs))


def log_normal(squares: Array, variance: Array | float, outputs: int) -> Array:
    """The log density of a normal distribution at a mean square over the outputs, up to a constant."""
    return -0.5 * outputs * (squares / variance + np.log(variance))


def majority_first(rivals: NDArray, targets: NDArray) -> tuple[int, int]:
    """The numbers of two networks (2, N, q): first the one that more rows belong to."""
    answers, given = read_rows(rivals, targets)
    found = explain(answers, given, np.ones(len(given)))
    # The second begins with what the first fits badly. Unless it fits its rows closely, these follow no rule.
    is_second = found.shares[1] > found.shares[0] and found.errors[1] <= FITS_CLOSELY * given.shape[1] ** 0.5
    return (1, 0) if is_second else (0, 1)


def may_be_bent(last: Vote, best: int, wrong: float) -> bool:
    """Whether wrong rows may have bent the ``best`` candidate, to which the share ``wrong`` of the rows seems wrong.

    If right and wrong rows are nearly as many, a network that drops none predicts something in between and may win the
    vote. Then the rows lie far closer to a candidate that drops some.
    """
    residuals = median_residuals(last.answers, last.given, last.weights)
    residual = residuals[best] / last.given.shape[1] ** 0.5
    is_between = last.names[best] == 0 and residuals.min() < CLOSER * residuals[best]
    is_rough = residual > COARSE or (wrong >= MANY and residual > ROUGH)
    return wrong >= NEAR_HALF or bool(is_rough or is_between)


class Division(NamedTuple):
    """Rows that follow two rules."""

    majority: Array  # (N, q) what its network predicts
    is_suspect: NDArray[np.bool_]  # (N,) which targets side with the minority


def divide(rivals: Array, given: NDArray, weights: Array) -> Division | None:
    """How two networks, the majority's first, divide the rows between them; None if they are no rivals.

    Noise can be divided as well, into rows above and rows below. Then the two networks lie close to each other.
    """
    found = explain(rivals, given, weights)
    is_two = (
        found.shares[1] >= LEAST_PART
        and found.errors[1] <= FITS_CLOSELY * given.shape[1] ** 0.5
        and np.median(distances(*rivals)) >= APART * found.errors.sum()
        and not agree(*rivals, within=tolerance(given))
    )
    if not is_two:
        return None
    from_first, from_second = (distances(each, given) for each in rivals)
    # A row that neither has learned counts as wrong only if it is nearer to the second.
    is_off = from_first > max(BEYOND * found.errors[0], ASIDE * tolerance(given))
    return Division(rivals[0], (from_second < from_first) & is_off)


def has_learned_enough(majority: Array, winner: Array, given: NDArray) -> bool:
    """Whether the majority's network fits honest rows about as closely as the winner of the race does."""
    return honest_error(majority, given) <= AS_CLOSE * honest_error(winner, given)
