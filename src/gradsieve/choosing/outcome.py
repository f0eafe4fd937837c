"""What comes of a race: how many targets are wrong, which rate is used, and what a person should know about it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradsieve.choosing.ballot import STEP, Vote, last_vote
from gradsieve.choosing.estimate import FAR, honest_error, suspects, tolerance, weigh_suspects
from gradsieve.choosing.judge import is_plain_contradicted
from gradsieve.choosing.pick import RatePick
from gradsieve.choosing.reading import Array
from gradsieve.choosing.vote import resamples

CLOSE = 1.0  # standard errors by which a larger rate may be behind the winner, for the estimate to go that far
MANY = 0.2  # wrong targets: of labels that a census finds, unless dropping is clearly bad, they are dropped
INTERVAL = (5, 95)  # percentiles


def knowing_answers(last: Vote, best: int) -> Array:
    """Whose answers in the last vote the estimate is made of: the winner's, if none knows better.

    Classes: what drops none has learnt wrong labels by heart, and contradicts right ones. Another that contradicts
    fewer knows more. Amounts: a larger rate, if honest rows lie nearer to what it says. Where nearly half of the
    targets are wrong, the vote tends to the smaller of two rates, and wrong rows still bend what that says.
    """
    given, drops = last.given, last.names[best] > 0
    if given.ndim == 1:
        heard = last.answers[best : best + 1] if drops else last.answers
        return min(heard, key=lambda each: weigh_suspects(*suspects(each, given), last.weights))
    heard = last.answers[best:] if drops and not is_close(last.answers[best], given) else last.answers[best : best + 1]
    return min(heard, key=lambda each: honest_error(each, given))


def is_close(answers: Array, given: NDArray) -> bool:
    """Whether honest amounts are met so closely that wrong ones no longer bend what is said."""
    return FAR * honest_error(answers, given) <= tolerance(given)


def rate_by_race(votes: list[Vote], estimate: float) -> float:
    """The winner's rate, or the estimate where that is larger, as far as a rate that the rows find about as good.

    The winner knows these targets to be wrong, and would not have chosen to drop any if it did no good. But trimming
    may cost more than the wrong rows do, in a network that is short of steps, or end with a majority of wrong ones. Of
    amounts it goes to the next rate at most, if that was about as good when it was last heard.
    """
    last = votes[-1]
    winner = last.names[last.verdict.best]
    if not winner:
        return winner
    heard = last.names if last.given.ndim == 1 else [rate for rate in votes[0].names if rate - winner < STEP]
    largest = max(rate for rate in heard if is_about_as_good(*last_vote(rate, winner, votes)))
    return max(winner, min(round(estimate, 2), largest))


def is_about_as_good(margin: float, error: float, share: float) -> bool:
    """Whether a rate is at most a standard error behind the winner."""
    return share > 0 and -margin <= CLOSE * error


def rate_by_census(last: Vote, estimate: float, largest: float) -> float:
    """The estimate of a census, and no less than the winner's rate; 0 where nothing is to be gained.

    Candidates on a sample are short of rows, which the run is not. What they can say is whether dropping does good.
    Where they cannot say even that, rate 0 and another being even in the end, many wrong labels are reason enough.
    """
    winner, is_even = last.names[last.verdict.best], len(last.verdict.even) > 1
    if not winner and not (is_even and estimate >= MANY):
        return winner
    return max(winner, min(round(estimate, 2), largest))


def estimate_and_interval(found: tuple[NDArray, Array], weight: Array, seed: int) -> tuple[float, tuple[float, float]]:
    """The share of suspects, given with how much each row says, and where most of it lies when rows are drawn anew."""
    drawn = [weigh_suspects(*found, weight * copies) for copies in resamples(len(weight), seed)]
    lower, upper = np.percentile(drawn, INTERVAL)
    return weigh_suspects(*found, weight), (float(lower), float(upper))


def doubt(pick: RatePick, votes: list[Vote], refuted: float = 0.0, is_divided: bool = False) -> str:
    """A warning about a pick, in a sentence or two; empty if all is well.

    ``refuted``: the rate that was not used, because networks that see other rows contradict the winner; else 0.
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
    # The first vote is of all rates. Once dropping is decided on, the last in which rate 0 takes part knows best.
    vote = votes[0] if pick.winner == plain else [each for each in votes if plain in each.names or each is votes[0]][-1]
    even = [vote.names[each] for each in vote.verdict.even]
    apart = max(even) if pick.winner == plain else pick.winner
    if plain in even and apart - plain > STEP:
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
