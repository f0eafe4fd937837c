"""The outcome of a race: the estimated share of wrong targets, the rate to use, and a warning to the user."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradsieve.choosing.ballot import STEP, Vote, last_vote
from gradsieve.choosing.estimate import FAR, honest_error, suspect_share, suspects, tolerance
from gradsieve.choosing.judge import is_plain_contradicted
from gradsieve.choosing.pick import RatePick
from gradsieve.choosing.reading import Array
from gradsieve.choosing.vote import resamples

ABOUT_AS_GOOD = 1.0  # standard errors: a rate that is no farther behind the winner is about as good
MANY = 0.2  # the share of wrong targets that is reason to drop after a tied vote on a sample, or else to warn
INTERVAL = (5, 95)  # percentiles of the estimates from resampled rows


def candidate_to_count_by(last: Vote, best: int) -> int:
    """The number of the candidate in the last vote by which wrong targets are counted: the winner, or a better one.

    Classes: a winner that drops no rows has memorized wrong labels and contradicts right ones; then the candidate that
    contradicts the fewest labels. Real-valued targets: a larger rate, if honest rows lie nearer to its predictions. If
    nearly half of the targets are wrong, the vote tends to the smaller of two rates, which wrong rows still bend.
    """
    answers, given, drops = last.answers, last.given, last.names[best] > 0
    if given.ndim == 1:
        compared = [best] if drops else range(len(answers))
        return min(compared, key=lambda each: suspect_share(*suspects(answers[each], given), last.weights))
    compared = range(best, len(answers)) if drops and not is_close(answers[best], given) else [best]
    return min(compared, key=lambda each: honest_error(answers[each], given))


def is_close(answers: Array, given: NDArray) -> bool:
    """Whether honest real-valued targets are predicted so closely that wrong ones cannot have bent the predictions."""
    return FAR * honest_error(answers, given) <= tolerance(given)


def rate_by_race(votes: list[Vote], estimate: float) -> float:
    """The winner's rate, or the estimate if that is larger, but no more than the largest rate that is about as good.

    Dropping all that seems wrong may cost more than it gains, if the network has few steps, or leave a majority of
    wrong rows. For real-valued targets only the winner and the next rate are compared, by the last vote that had both.
    If rate 0 has won, nothing is dropped.
    """
    last = votes[-1]
    winner = last.names[last.verdict.best]
    if not winner:
        return winner
    compared = last.names if last.given.ndim == 1 else [rate for rate in votes[0].names if rate - winner < STEP]
    largest = max(rate for rate in compared if is_about_as_good(*last_vote(rate, winner, votes)))
    return max(winner, min(round(estimate, 2), largest))


def is_about_as_good(margin: float, error: float, share: float) -> bool:
    """Whether a rate, if it was in any vote, was at most a standard error behind the winner."""
    return share > 0 and -margin <= ABOUT_AS_GOOD * error


def rate_by_census(last: Vote, estimate: float, largest: float) -> float:
    """The estimate of a census, but no less than the winner's rate; 0 if dropping does no good.

    Candidates are trained on a sample and short of rows, which the final fit is not. So they only tell whether dropping
    does good. If they cannot even tell that, because rate 0 and another are tied, many wrong labels are reason enough.
    """
    winner, is_tied = last.names[last.verdict.best], len(last.verdict.tied) > 1
    if not winner and not (is_tied and estimate >= MANY):
        return winner
    return max(winner, min(round(estimate, 2), largest))


def estimate_and_interval(
    found: NDArray, weight: Array, seed: int, trust: Array | None = None
) -> tuple[float, tuple[float, float]]:
    """The share of the rows that are ``found`` wrong, (N,), and its range when the rows are resampled.

    ``found`` is whether each row looks wrong, or how many wrong rows it stands for.
    """
    trust = np.ones(len(found)) if trust is None else trust
    drawn = [suspect_share(found, trust, weight * copies) for copies in resamples(len(weight), seed)]
    lower, upper = np.percentile(drawn, INTERVAL)
    return suspect_share(found, trust, weight), (float(lower), float(upper))


def doubt(pick: RatePick, votes: list[Vote], refuted: float = 0.0, is_divided: bool = False) -> str:
    """The warning about a pick, in a sentence or two; empty if all is well.

    ``refuted``: the rate that is not used because networks trained on other rows contradict the winner; else 0.
    ``is_divided``: the rows follow two rules, and the estimate is the share of the smaller part.
    """
    if refuted:
        return (
            f"At the drop rate {refuted:g}, networks that see different rows contradict each other, so nothing is "
            "dropped. Nearly half of the targets may be wrong: look at the rows first."
        )
    if pick.estimate > 0.5:
        return (
            f"About {pick.estimate:.0%} of the targets seem wrong. If more than half are, nothing can tell wrong "
            "targets from right ones: look at the rows before you trust the fit."
        )
    plain = pick.rates[0]
    if pick.rate > pick.winner == plain:
        return ""  # a census has decided
    # If rate 0 has won: the first vote, which had all rates; else the last vote that had rate 0.
    vote = votes[0] if pick.winner == plain else [each for each in votes if plain in each.names or each is votes[0]][-1]
    tied = [vote.names[each] for each in vote.verdict.tied]
    apart = max(tied) if pick.winner == plain else pick.winner
    if plain in tied and apart - plain > STEP:
        return (
            f"The held-out rows cannot tell the drop rates {plain:g} and {apart:g} apart; {pick.rate:g} is used. "
            "Use more rows, or set the drop rate yourself."
        )
    if pick.rate == plain and is_divided:
        return (
            f"About {pick.estimate:.0%} of the targets follow another rule than the rest. Either they are wrong, or an "
            "input is missing that would tell the two apart. Nothing is dropped: look at the rows first."
        )
    if pick.rate == plain and pick.estimate >= MANY:
        return (
            f"About {pick.estimate:.0%} of the targets seem wrong, or the networks have learned too little. But on the "
            "held-out rows no drop rate is better than 0, so nothing is dropped. Look at the rows, or train for longer."
        )
    with_plain = [each for each in votes if each.names[0] == plain and each.names[1:] and each.names[1] - plain < STEP]
    if pick.rate == plain and any(is_plain_contradicted(each.answers, each.given) for each in with_plain):
        return (
            f"A network that drops {pick.rates[1]:.0%} of the rows contradicts one that drops none, and the held-out "
            "rows cannot say which is right, so nothing is dropped. Look at the rows first."
        )
    return ""
