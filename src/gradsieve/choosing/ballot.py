"""One of the votes in a race of drop rates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing.judge import Verdict, is_majority_right, judge
from gradsieve.choosing.reading import Array, read_rows, read_weights
from gradsieve.choosing.sharpen import POWER, equally_sure, raise_to

STEP = 0.1 + 1e-9  # rates so near to each other are neighbours


class Vote(NamedTuple):
    """One of the votes in a race."""

    share: float  # of the epochs, when it was held
    names: list[float]  # the rates that took part
    answers: Array  # (M, N, k) of each about the voting rows
    heard: Array  # the same as they were judged by: probabilities sharpened
    given: NDArray  # what those rows say
    weights: Array
    verdict: Verdict
    has_majority: bool  # whether in this vote and in those before it a majority of the rows seemed right


def hold_vote(
    share: float,
    answers: dict[float, NDArray],
    targets: ArrayLike,
    weights: ArrayLike | None,
    plain: float,
    before: list[Vote],
) -> Vote:
    """Let the rows judge what the candidates say now."""
    stacked, given = read_rows(np.stack(list(answers.values())), targets)
    names, weight = list(answers), read_weights(weights, len(given))
    # Once in doubt, a majority stays so: the candidate that gave reason for it may be out of the race.
    has_majority = all(vote.has_majority for vote in before)
    heard = stacked
    if given.ndim == 1:
        heard = equally_sure(stacked, weight) if before else raise_to(stacked, POWER)
    else:
        has_majority = has_majority and is_majority_right(stacked, given, weight)
    has_plain = names[0] == plain
    # Where few rows are wrong, dropping some does little good; where none are, harm. The end is the last time to ask.
    must_be_sure = share == 1 and has_plain and len(names) > 1 and names[1] - plain < STEP
    verdict = judge(heard, given, weight, has_plain=has_plain, has_majority=has_majority, must_be_sure=must_be_sure)
    return Vote(share, names, stacked, heard, given, weight, verdict, has_majority)


def last_vote(rate: float, winner: float, votes: list[Vote]) -> tuple[float, float, float]:
    """The margin of a rate against the winner, its standard error, and the share of the epochs it was trained for."""
    for vote in reversed(votes):
        if rate in vote.names and winner in vote.names:
            place, result = (vote.names.index(rate), vote.names.index(winner)), vote.verdict.result
            return float(result.margins[place]), float(result.errors[place]), vote.share
    return -1.0, 0.0, 0.0  # it never came as far as a vote
