"""One vote of the held-out rows in a race of drop rates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing.judge import Verdict, is_majority_right, judge
from gradsieve.choosing.reading import Array, read_rows, read_weights
from gradsieve.choosing.sharpen import POWER, comparable, raise_to

STEP = 0.1 + 1e-9  # rates at most this far apart are neighbours; the rest is for rounding


class Vote(NamedTuple):
    """One vote in a race between M candidates."""

    share: float  # of the epochs that were done when it was held
    names: list[float]  # the rates that took part, ascending
    answers: Array  # (M, N, k) each candidate's predictions for the voting rows
    judged: Array  # (M, N, k) what the vote compares: the same, but with probabilities sharpened
    given: NDArray  # the targets of those rows
    weights: Array
    verdict: Verdict
    has_majority: bool  # whether most rows looked right to every candidate, in this vote and all before it


def hold_vote(
    share: float,
    answers: dict[float, NDArray],
    targets: ArrayLike,
    weights: ArrayLike | None,
    plain: float,
    before: list[Vote],
) -> Vote:
    """Let the voting rows judge the candidates' present predictions; ``before``: the votes so far."""
    stacked, given = read_rows(np.stack(list(answers.values())), targets)
    names, weight = list(answers), read_weights(weights, len(given))
    # A doubt about the majority stays: the candidate that raised it may have left the race since.
    has_majority = all(vote.has_majority for vote in before)
    is_classes = given.ndim == 1
    judged = raise_to(stacked, POWER) if is_classes and not before else comparable(stacked, given, weight)
    if not is_classes:
        has_majority = has_majority and is_majority_right(stacked, given, weight)
    has_plain = names[0] == plain
    # Dropping a tenth gains little if few rows are wrong, and does harm if none is: the last vote must be clear.
    must_be_sure = share == 1 and has_plain and len(names) > 1 and names[1] - plain < STEP
    verdict = judge(judged, given, weight, has_plain=has_plain, has_majority=has_majority, must_be_sure=must_be_sure)
    return Vote(share, names, stacked, judged, given, weight, verdict, has_majority)


def last_vote(rate: float, winner: float, votes: list[Vote]) -> tuple[float, float, float]:
    """The margin of a rate against the winner and its standard error, in the last vote that had both; when that was."""
    for vote in reversed(votes):
        if rate in vote.names and winner in vote.names:
            place, result = (vote.names.index(rate), vote.names.index(winner)), vote.verdict.result
            return float(result.margins[place]), float(result.errors[place]), vote.share
    return -1.0, 0.0, 0.0  # its training diverged before the first vote
