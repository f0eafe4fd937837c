"""Which drop rate leads: the vote of the held-out rows, and a tie-breaker if the vote is close.

If almost half of the targets are wrong, honest rows hardly outvote the others, and even candidates that are far apart
may tie. The tie-breaker is the median residual: it is small if a network follows the majority, whatever the wrong rows
say. Alone it would be a bad judge, since on clean rows it favours a network that gives up the hard ones. So it decides
only between candidates that the vote cannot tell apart, and not if it may itself be the residual of a wrong row.
For classes the tie-breaker is the number of labels that a candidate predicts: it can only decide for rate 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.choosing.estimate import is_off, tolerance
from gradsieve.choosing.reading import Array
from gradsieve.choosing.vote import LEEWAY, SURE, VoteResult, ballots_of, tally

# Rate 0 loses only to a median residual below this share of its own: giving up a few targets that are far larger than
# the others, none of them wrong, takes a quarter off the median.
CLOSER = 2 / 3
ALIKE = 1.05  # median residuals within this factor of the smallest are equal: the smaller rate is taken
# Standard errors by which candidate 1 must lead candidate 0 in the end, if real-valued targets are predicted. Where a
# tenth of them is wrong it leads by far more; two errors are chance in one clean set in forty, these in one in 160.
CLEARLY = 2.5
MAJORITY = 0.55  # the share of rows that must look right to every candidate: else the median may be a wrong row's


class Verdict(NamedTuple):
    """What held-out rows say about candidates in the order of their rates."""

    best: int
    result: VoteResult  # of the vote alone
    tied: tuple[int, ...]  # the winner of the vote, and those that it does not lead by two standard errors


def judge(
    answers: Array, given: NDArray, weights: Array, *, has_plain: bool, has_majority: bool, must_be_sure: bool = False
) -> Verdict:
    """The best of (M, N, k) ``answers``, with ``given`` and ``weights`` from `read_rows` and `read_weights`.

    ``has_plain``: candidate 0 drops no rows, and loses only to one half a standard error ahead. ``must_be_sure``:
    candidate 1 must be two ahead of it, for real-valued targets two and a half, unless the two contradict each other.
    ``has_majority``: the median residual may break a tie; but not if two candidates at neighbouring rates contradict
    each other, each with its own majority.
    """
    count = len(answers)
    if count == 1:
        return Verdict(0, VoteResult((0,), np.zeros((1, 1)), np.zeros((1, 1))), (0,))
    result = tally(ballots_of(answers, given, weights), np.ones(len(given)), count, "none")
    leader, lead, error = result.ranking[0], result.margins[result.ranking[0]], result.errors[result.ranking[0]]
    tied = tuple(each for each in range(count) if each == leader or lead[each] < SURE * error[each])
    is_doubtful = must_be_sure and leader == 1 and not is_plain_contradicted(answers, given)
    lead_needed = SURE if given.ndim == 1 else CLEARLY
    leeway = lead_needed if is_doubtful else LEEWAY
    best = 0 if has_plain and lead[0] <= leeway * error[0] else leader
    if given.ndim == 1:
        best = next(
            each for each in (best, *result.ranking) if not (has_plain and is_refuted(answers, given, weights, each))
        )
        return Verdict(best, result, tied)
    dropping = answers[1:] if has_plain else answers
    if has_majority and all(map(agree, dropping, dropping[1:])):
        best = nearest(median_residuals(answers, given, weights), best, tied, has_plain)
    elif has_plain and 0 in tied:
        best = 0
    return Verdict(best, result, tied)


def is_plain_contradicted(answers: Array, given: NDArray) -> bool:
    """Whether, for real-valued targets, candidate 1 contradicts candidate 0, which drops no rows.

    If no row is wrong, giving up a tenth of them changes little.
    """
    return given.ndim > 1 and not agree(answers[0], answers[1], within=tolerance(given))


def is_refuted(answers: Array, given: NDArray, weights: Array, number: int) -> bool:
    """Whether a candidate predicts the label of clearly fewer rows than candidate 0 does.

    The vote on classes compares probabilities, and networks that are hardly trained yet are the surer the fewer rows
    they learn from.
    """
    hits = answers.argmax(2) == given  # (M, N)
    lost = weights * (hits[0].astype(np.float64) - hits[number])
    return bool(lost.sum() > SURE * np.sqrt((lost**2).sum()))


def nearest(residuals: Array, best: int, tied: Sequence[int], has_plain: bool) -> int:
    """The smallest rate with about the smallest median residual, among the ``tied`` ones that drop rows.

    If rate 0 is the ``best``, it stays unless another's residual is clearly smaller.
    """
    smallest = residuals[list(tied)].min()
    if has_plain and best == 0 and smallest > CLOSER * residuals[0]:
        return best
    dropping = tied[1:] if has_plain and tied[0] == 0 else tied
    return next((each for each in dropping if residuals[each] <= ALIKE * smallest), best)


def median_residuals(answers: Array, given: NDArray, weights: Array) -> Array:
    """(M,) each candidate's weighted median distance from the targets."""
    distance = np.sqrt(((answers - given) ** 2).sum(2))  # (M, N)
    order = distance.argsort(1, kind="stable")
    reached = weights[order].cumsum(1)
    middle = (reached < reached[:, -1:] / 2).sum(1)
    return np.take_along_axis(distance, order, 1)[np.arange(len(answers)), middle]


def is_majority_right(answers: Array, given: NDArray, weights: Array) -> bool:
    """Whether to every candidate clearly more than half of the real-valued targets look right."""
    # Small mistakes count, too: if there are many, the median residual is one of them.
    wrong = max(float(is_off(each, given) @ weights) for each in answers) / weights.sum()
    return bool(wrong <= 1 - MAJORITY)


def agree(first: Array, second: Array, within: float = 0.0) -> bool:
    """Whether two predictions (N, q) differ by less than they vary, or no more than ``within``."""
    varies = min(first.var(0).sum(), second.var(0).sum())
    return bool(((first - second) ** 2).sum(1).mean() <= max(varies, within**2))
