"""Two networks that rival for the rows: how many amounts are wrong where nearly half of them are.

A network that drops the farthest rows is bent by wrong ones once these are nearly as many as the right ones, and its
residuals no longer tell them apart. But wrong rows often have something in common: a sign, a swap, another formula. A
second network, which learns what the first does not meet, takes them away from it. Each row then belongs to the one
that meets it better, or to neither.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.choosing.ballot import Vote
from gradsieve.choosing.estimate import distances, honest_error, spread, tolerance
from gradsieve.choosing.judge import CLOSER, agree, median_residuals
from gradsieve.choosing.reading import Array, read_rows

NEAR_HALF = 0.3  # of the rows dropped, or believed to be wrong, from which on rivals are asked,
COARSE = 0.3  # and a median residual, in interquartile ranges: wrong rows may have bent what is said
CLOSE = 0.45  # interquartile ranges: a network that meets its rows less closely has only been left with them
LEAST_PART = 0.1  # of the rows: fewer are no rivals
AS_CLOSE = 2.0  # times as far as the winner meets honest rows: rivals that miss them by more have learnt too little
BEYOND = 3.0  # errors of the majority's network, long tails included: none of its rows lies farther off
ASIDE = 0.5  # of the usual tolerance: that a row sides with the minority says by itself that it is off
APART = 1.2  # times the sum of both errors: if rivals lie nearer to each other, they have divided noise between them
TAIL, WIDER = 0.15, 3.0  # honest residuals: this share of them has so many times the deviation of the others
FIRST_SHARES = (0.5, 0.3, 0.2)  # of the first network, the second and neither, to begin with
LEAST_SHARE, LEAST_VARIANCE = 0.005, 1e-4
LEAST_CHANCE = 0.04  # the variance of what belongs to nobody, in squares of interquartile ranges
TURNS = 80


class Explained(NamedTuple):
    """How two networks explain rows, each row being met by one of them or by none."""

    belongs: Array  # (3, N) to the first, to the second, to none
    shares: Array  # (3,) of the rows
    errors: Array  # (2,) the root mean square of the residuals of a network's own rows


def explain(rivals: Array, given: NDArray, weights: Array) -> Explained:
    """The shares and errors of two networks' answers (2, N, q) at which ``given`` (N, q) is likeliest."""
    outputs = given.shape[1]
    squares = np.stack([distances(each, given) ** 2 for each in rivals]) / outputs  # (2, N)
    off_centre = ((given - np.median(given, 0)) ** 2).sum(1) / outputs
    by_chance = log_normal(off_centre, 2 * np.median(off_centre) + LEAST_CHANCE, outputs)
    # Rows of others can only make the nearest quarter wider; with more a network would take all rows for its own.
    most = np.array([spread(np.sqrt(each * outputs), outputs) ** 2 / outputs for each in squares])
    most = np.maximum(most, LEAST_VARIANCE)
    shares, variance, belongs = np.array(FIRST_SHARES), most, np.zeros((3, len(given)))
    in_all = 1 - TAIL + TAIL * WIDER**2
    for _ in range(TURNS):
        near = log_normal(squares, variance[:, None], outputs) + np.log(1 - TAIL)
        far = log_normal(squares, variance[:, None] * WIDER**2, outputs) + np.log(TAIL)
        joint = np.concatenate([np.logaddexp(near, far), by_chance[None]]) + np.log(shares)[:, None]
        belongs = np.exp(joint - np.logaddexp.reduce(joint))
        shares = np.maximum(belongs @ weights / weights.sum(), LEAST_SHARE)
        own = belongs[:2] * weights
        variance = (own * squares).sum(1) / np.maximum(own.sum(1), 1) / in_all
        variance = np.clip(variance, LEAST_VARIANCE, most)
    return Explained(belongs, shares, np.sqrt(variance * in_all * outputs))


def log_normal(squares: Array, variance: Array | float, outputs: int) -> Array:
    """The logarithm of a normal density of so many outputs at a mean square distance, but for a constant."""
    return -0.5 * outputs * (squares / variance + np.log(variance))


def majority_first(rivals: NDArray, targets: NDArray) -> tuple[int, int]:
    """Which of two networks (2, N, q) more rows belong to, and the other."""
    answers, given = read_rows(rivals, targets)
    found = explain(answers, given, np.ones(len(given)))
    # The second begins with what the first does not meet: unless it meets something closely, these are rows of chance.
    is_second = found.shares[1] > found.shares[0] and found.errors[1] <= CLOSE * given.shape[1] ** 0.5
    return (1, 0) if is_second else (0, 1)


def may_be_bent(last: Vote, best: int, wrong: float) -> bool:
    """Whether wrong rows may have bent what the best says, to which the share ``wrong`` of the rows seems wrong.

    Where right and wrong rows are nearly even, dropping none lies between the two and may be best by the vote. Then the
    rows lie far closer to one that drops some.
    """
    residuals = median_residuals(last.answers, last.given, last.weights)
    coarse = COARSE * last.given.shape[1] ** 0.5
    is_between = last.names[best] == 0 and residuals.min() < CLOSER * residuals[best]
    return wrong >= NEAR_HALF or bool(residuals[best] > coarse or is_between)


class Division(NamedTuple):
    """Rows that follow two rules."""

    majority: Array  # (N, q) what its network says
    is_suspect: NDArray[np.bool_]  # (N,) which targets side with the minority


def divide(rivals: Array, given: NDArray, weights: Array) -> Division | None:
    """How two networks, the majority's first, divide the rows between them; None where rows do not divide.

    Noise can be divided as well, in rows above and rows below. Then the two lie no farther apart than their rows do.
    """
    found = explain(rivals, given, weights)
    is_two = (
        found.shares[1] >= LEAST_PART
        and found.errors[1] <= CLOSE * given.shape[1] ** 0.5
        and np.median(distances(*rivals)) >= APART * found.errors.sum()
        and not agree(*rivals, within=tolerance(given))
    )
    if not is_two:
        return None
    from_first, from_second = (distances(each, given) for each in rivals)
    # What neither has learnt is nobody's: it says nothing against the majority unless it sides with the other.
    is_off = from_first > max(BEYOND * found.errors[0], ASIDE * tolerance(given))
    return Division(rivals[0], (from_second < from_first) & is_off)


def know_enough(majority: Array, winner: Array, given: NDArray) -> bool:
    """Whether the majority's rival meets honest rows about as closely as the winner of the race does."""
    return honest_error(majority, given) <= AS_CLOSE * honest_error(winner, given)
