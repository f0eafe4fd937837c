"""The drop rate that nobody knows: train at several rates, let held-out rows choose.

The rows that vote are as wrong as those that the candidates are trained on. Candidates start from the same weights and
see the same batches. At 30 % and at 60 % of the epochs those stop that are far from the best, and two run to the end;
of few rows so many that the winner has won against both of its neighbours.

Of many rows the candidates see a sample, which says whether dropping does good, but may be too small to learn from how
many labels are wrong. That is then asked of a network that has seen all other rows a few times and dropped none: wrong
labels are learnt by heart later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing import RATES
from gradsieve.choosing.electorate import Part
from gradsieve.choosing.estimate import FAR, honest_error, suspects, tolerance, weigh_suspects
from gradsieve.choosing.judge import Verdict, is_majority_right, judge
from gradsieve.choosing.sharpen import POWER, equally_sure, raise_to
from gradsieve.choosing.vote import Array, Choice, choose, read_rows, read_weights, resamples
from gradsieve.counts import check_rate
from gradsieve.errors import GradsieveError, InputError, RankError

RUNGS = ((0.3, 3), (0.6, 2), (1.0, 1))  # at this share of the epochs, so many stay
CLOSE = 1.0  # standard errors by which a larger rate may be behind the winner, for the estimate to go that far
STEP = 0.1 + 1e-9  # rates so near to each other may tie
LEAST_ROWS = 200  # a fifth of fewer is no electorate
MANY = 0.2  # wrong labels by a census: unless dropping is clearly bad, they are dropped
CENSUS = 0.1  # of the epochs: how long a census takes, in which no network has yet learnt wrong labels by heart
KNOWING = 0.9  # of the labels that the winner meets: fewer, and a census is not heard
INTERVAL = (5, 95)  # percentiles


class Candidate(Protocol):
    """A network at one drop rate, on its way."""

    def train(self, share: float) -> None:
        """Go on until this share of all epochs is done."""
        ...

    def predict(self) -> NDArray:
        """Probabilities (N, C) or outputs (N, q) for the voting rows."""
        ...


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


@dataclass(frozen=True, eq=False)
class RatePick:
    """A drop rate, and how it was chosen."""

    rate: float  # to drop: the one that won the race, or the estimate where that is larger and does no harm
    estimate: float  # of the share of wrong targets
    interval: tuple[float, float]  # 90 % of the estimates from resampled rows; what the method gets wrong is not in it
    warning: str = ""  # one sentence where the rows could not decide, or more than half of them seem wrong
    winner: float = 0.0  # of the race
    rates: tuple[float, ...] = ()  # all that were tried
    margins: tuple[float, ...] = ()  # of each against the winner, at the last vote that both took part in
    errors: tuple[float, ...] = ()  # their standard errors
    trained: tuple[float, ...] = ()  # the share of the epochs after which that vote was
    choice: Choice | None = None  # the last vote

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the last vote."""
        plain = {name: value for name, value in vars(self).items() if name != "choice"}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RatePick:
        """What `to_json` wrote."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        pick = cls(**fields)
        check_rate("rate", pick.rate)
        return pick


def no_pick(warning: str = "") -> RatePick:
    """Where there is nothing to choose, or nobody to choose: no row is dropped."""
    return RatePick(0.0, 0.0, (0.0, 0.0), warning)


def too_few(rows: int) -> RatePick:
    """A table so small that its vote would be a lottery."""
    return no_pick(
        f"{rows} rows are too few to choose a drop rate by ({LEAST_ROWS} are needed), so none is dropped. "
        "Give drop_rate the share of targets that you believe is wrong."
    )


class Together:
    """A candidate of several networks, one for each part of an electorate."""

    def __init__(self, parts: Sequence[Candidate]) -> None:
        self.parts = parts

    def train(self, share: float) -> None:
        for each in self.parts:
            each.train(share)

    def predict(self) -> NDArray:
        return np.concatenate([each.predict() for each in self.parts])


def race(
    start: Callable[[float, Part], Candidate],
    parts: Sequence[Part],
    targets: NDArray,
    *,
    weights: NDArray | None = None,
    seed: int = 0,
) -> RatePick:
    """Let the rows choose between candidates of several networks: ``start(rate, part)`` is that on one of the parts.

    ``targets`` and ``weights`` are those of all rows. Sets so small that they have several parts have time to be
    thorough; of larger ones, if they are classes, a census is taken.
    """
    if len(targets) < LEAST_ROWS:
        return too_few(len(targets))
    voters, is_small = torch.cat([part.voters for part in parts]).numpy(), len(parts) > 1
    return pick_rate(
        lambda rate: Together([start(rate, part) for part in parts]),
        targets[voters],
        weights=None if weights is None else weights[voters],
        seed=seed,
        is_thorough=is_small,
        census=None if is_small else lambda: start(0.0, parts[0].widened()),
    )


def pick_rate(
    start: Callable[[float], Candidate],
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
    rates: Sequence[float] = RATES,
    is_thorough: bool = False,
    census: Callable[[], Candidate] | None = None,
) -> RatePick:
    """Race candidates at ascending ``rates``, the first of them 0, and let the voting rows' ``targets`` choose.

    ``is_thorough``: of classes rate 0 runs to the end. Networks that have hardly learnt anything by the first vote are
    judged by how sure they are, and what drops rows for no good is found out later. Then both neighbours of whatever
    wins are trained to the end, too, until it has won against them: early votes tend to small rates. ``census`` starts
    a network that will know classes better than the candidates do; the estimate is then its own.
    """
    runners = {rate: start(rate) for rate in rates}
    votes: list[Vote] = []
    answers: dict[float, NDArray] = {}
    staying = set(rates)
    for share, stay in RUNGS:
        answers = advance(runners, staying, share)
        votes.append(hold_vote(share, answers, targets, weights, rates[0], votes))
        staying = {votes[-1].names[each] for each in neighbours(votes[-1], stay)}
        if is_thorough and votes[-1].given.ndim == 1:
            staying.add(rates[0])
        if not is_thorough:
            runners = {rate: runner for rate, runner in runners.items() if rate in staying}  # the others are let go
    while is_thorough and (beside := next_to_winner(votes[-1], rates) & runners.keys() - answers.keys()):
        answers = advance(runners, beside, 1.0, answers)
        votes.append(hold_vote(1.0, answers, targets, weights, rates[0], votes))
    last = votes[-1]
    best, winner, choice = last.verdict.best, last.names[last.verdict.best], None
    if len(last.names) > 1:
        choice = choose(last.heard, last.given, names=last.names, weights=weights, seed=seed)
    counted = hold_census(census, last, best) if census is not None and last.given.ndim == 1 else None
    knowing = knowing_answers(last, best) if counted is None else counted
    estimate, interval = estimate_and_interval(knowing, last.given, last.weights, seed)
    rate = rate_by_race(votes, estimate) if counted is None else rate_by_census(last, estimate, max(rates))
    margins, errors, trained = zip(*(last_vote(each, winner, votes) for each in rates), strict=True)
    pick = RatePick(rate, estimate, interval, "", winner, tuple(rates), margins, errors, trained, choice)
    return replace(pick, warning=doubt(pick, votes))


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


def neighbours(vote: Vote, count: int) -> list[int]:
    """The best and those nearest to its rate: what is behind early may lead late, but not from far away."""
    best, place = vote.names[vote.verdict.best], vote.verdict.result.ranking.index
    by_distance = sorted(range(len(vote.names)), key=lambda each: (round(abs(vote.names[each] - best), 6), place(each)))
    return sorted(by_distance[:count])


def next_to_winner(vote: Vote, rates: Sequence[float]) -> set[float]:
    """The rates on both sides of the one that leads."""
    place = list(rates).index(vote.names[vote.verdict.best])
    return {*rates[max(0, place - 1) : place], *rates[place + 1 : place + 2]}


def advance(
    runners: dict[float, Candidate], rates: AbstractSet[float], share: float, said: dict[float, NDArray] | None = None
) -> dict[float, NDArray]:
    """Train some on; what they say about the voting rows, beside what others have said, in the order of the rates.

    One whose training diverges is out and has lost, unless all do.
    """
    answers = dict(said or {})
    failure = None
    for rate in sorted(rates & runners.keys()):
        try:
            runners[rate].train(share)
            answers[rate] = runners[rate].predict()
        except GradsieveError as error:
            failure = error
            del runners[rate]
    if not answers and failure is not None:
        raise failure
    return dict(sorted(answers.items()))


def hold_census(census: Callable[[], Candidate], last: Vote, best: int) -> Array | None:
    """What the network of a census says about the voting rows.

    None where it knows far less than the winner, in epochs too few, or where its training diverges.
    """
    network = census()
    try:
        network.train(CENSUS)
        counted = read_rows(network.predict()[None], last.given)[0][0]
    except (InputError, RankError):  # of a loop that is not ours, of a rank that is lost
        raise
    except GradsieveError:
        return None
    met, met_by_winner = (last.weights @ (each.argmax(1) == last.given) for each in (counted, last.answers[best]))
    return counted if met >= KNOWING * met_by_winner else None


def last_vote(rate: float, winner: float, votes: list[Vote]) -> tuple[float, float, float]:
    """The margin of a rate against the winner, its standard error, and the share of the epochs it was trained for."""
    for vote in reversed(votes):
        if rate in vote.names and winner in vote.names:
            place, result = (vote.names.index(rate), vote.names.index(winner)), vote.verdict.result
            return float(result.margins[place]), float(result.errors[place]), vote.share
    return -1.0, 0.0, 0.0  # it never came as far as a vote


def doubt(pick: RatePick, votes: list[Vote]) -> str:
    """What a person should know about a pick, in one sentence; empty where all is well."""
    if pick.estimate > 0.5:
        return (
            f"About {pick.estimate:.0%} of the targets seem wrong. Beyond a half nothing tells wrong targets from "
            "right ones: look at the rows before trusting the fit."
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
            "More rows would help, or a drop_rate of your own."
        )
    return ""


def estimate_and_interval(
    answers: Array, given: NDArray, weight: Array, seed: int
) -> tuple[float, tuple[float, float]]:
    """The winner's estimate, and between which most of its estimates lie when rows are drawn anew."""
    found = suspects(answers, given)
    drawn = [weigh_suspects(*found, weight * copies) for copies in resamples(len(given), seed)]
    lower, upper = np.percentile(drawn, INTERVAL)
    return weigh_suspects(*found, weight), (float(lower), float(upper))
