"""The drop rate that nobody knows: train at several rates, let held-out rows choose.

The rows that vote are as wrong as those that the candidates are trained on. Candidates start from the same weights and
see the same batches; those that are behind at 30 % and at 60 % of the epochs stop there, and two run to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gradsieve import seeds
from gradsieve.choosing import RATES
from gradsieve.choosing.vote import (
    RESAMPLES,
    Array,
    Choice,
    Prefer,
    Tally,
    choose,
    rank,
    read_rows,
    read_weights,
    resamples,
)
from gradsieve.counts import check_rate, part
from gradsieve.errors import GradsieveError

RUNGS = ((0.3, 3), (0.6, 2))  # at this share of the epochs, so many stay
STEP = 0.1 + 1e-9  # rates so near to each other may tie
LEAST_ROWS = 200  # a fifth of fewer is no electorate
ENOUGH = 45  # times the square root of the rows: so many take part, all of them up to 2,025 rows
VOTERS = 0.2  # of those
MOST_VOTERS = 5_000
FAR = 5.0  # median residuals beyond which a target counts as wrong
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
    names: list[float]
    result: Tally


@dataclass(frozen=True, eq=False)
class RatePick:
    """A drop rate, and how it was chosen."""

    rate: float  # to drop: the one that won the vote, or the estimate where that is larger
    estimate: float  # of the share of wrong targets
    interval: tuple[float, float]  # 90 % of the estimates from resampled rows; what the method gets wrong is not in it
    warning: str = ""  # one sentence where the rows could not decide, or more than half of them seem wrong
    winner: float = 0.0  # of the vote
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


def electorate(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows candidates are trained on, and which vote; a sample where there are many.

    A vote costs far less than an epoch, so rows that are not in the sample vote as well.
    """
    order = torch.randperm(rows, generator=seeds.generator(seed, "electorate"))
    sample = min(rows, int(ENOUGH * rows**0.5))
    trained = sample - part(VOTERS, sample)
    return order[:trained], order[trained : trained + MOST_VOTERS]


def pick_rate(
    start: Callable[[float], Candidate],
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
    rates: Sequence[float] = RATES,
) -> RatePick:
    """Race candidates at ascending ``rates`` and let the voting rows' ``targets`` choose.

    The first rate, 0, is left only for one that is half a standard error ahead: dropping rows is never free.
    """
    runners = {rate: start(rate) for rate in rates}
    votes: list[Vote] = []
    for share, stay in RUNGS:
        answers = advance(runners, share)
        names = list(answers)
        if len(names) > stay:
            vote = Vote(share, names, rank(stack(answers), targets, preference(names, rates), weights))
            votes.append(vote)
            names = sorted(names[each] for each in vote.result.ranking[:stay])
        runners = {rate: runners[rate] for rate in names}
    answers = advance(runners, 1.0)
    names, choice = list(answers), None
    if len(names) > 1:
        prefer = preference(names, rates)
        choice = choose(stack(answers), targets, names=names, prefer=prefer, weights=weights, seed=seed)
        votes.append(Vote(1.0, names, Tally(choice.ranking, choice.margins, choice.errors)))
    winner = choice.name if choice else names[0]
    estimate, interval = estimate_and_interval(answers, choice, targets, weights, seed)
    # The winner knows these targets to be wrong, and would not have chosen to drop any if it did no good.
    rate = max(winner, min(round(estimate, 2), max(rates))) if winner else winner
    margins, errors, trained = zip(*(last_vote(each, winner, votes) for each in rates), strict=True)
    pick = RatePick(rate, estimate, interval, "", winner, tuple(rates), margins, errors, trained, choice)
    return replace(pick, warning=doubt(pick))


def stack(answers: dict[float, NDArray]) -> NDArray:
    return np.stack(list(answers.values()))


def preference(names: list[float], rates: Sequence[float]) -> Prefer:
    """The first of all rates is preferred, while it is in the race."""
    return "baseline" if names[0] == rates[0] else "none"


def advance(runners: dict[float, Candidate], share: float) -> dict[float, NDArray]:
    """Train on; what each says about the voting rows. One whose training diverges has lost, unless all do."""
    answers: dict[float, NDArray] = {}
    failure = None
    for rate, runner in runners.items():
        try:
            runner.train(share)
            answers[rate] = runner.predict()
        except GradsieveError as error:
            failure = error
    if not answers and failure is not None:
        raise failure
    return answers


def last_vote(rate: float, winner: float, votes: list[Vote]) -> tuple[float, float, float]:
    """The margin of a rate against the winner, its standard error, and the share of the epochs it was trained for."""
    for vote in reversed(votes):
        if rate in vote.names and winner in vote.names:
            place = vote.names.index(rate), vote.names.index(winner)
            return float(vote.result.margins[place]), float(vote.result.errors[place]), vote.share
    return -1.0, 0.0, 0.0  # it never came as far as a vote


def doubt(pick: RatePick) -> str:
    """What a person should know about a pick, in one sentence; empty where all is well."""
    if pick.estimate > 0.5:
        return (
            f"About {pick.estimate:.0%} of the targets seem wrong. Beyond a half nothing tells wrong targets from "
            "right ones: look at the rows before trusting the fit."
        )
    if pick.choice is not None and pick.choice.confidence < 0.9:
        apart = [rate for rate in pick.choice.names if abs(rate - pick.winner) > STEP]
        if apart:
            return (
                f"The held-out rows cannot tell the drop rates {pick.winner:g} and {apart[0]:g} apart; {pick.rate:g} "
                "is used. More rows would help, or a drop_rate of your own."
            )
    return ""


def estimate_rate(predictions: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The share of held-out rows whose target a good model finds wrong.

    ``predictions`` are one model's: outputs (N,) or (N, q), or probabilities (N, C) with integer classes (N,).
    Classes: how often the model disagrees with the label, the rows of which it is sure counting more. Real outputs:
    how many residuals are larger than five times the median residual of the others.
    """
    answers, given = read_rows(np.asarray(predictions)[None], targets)
    return weigh_suspects(*suspects(answers[0], given), read_weights(weights, len(given)))


def suspects(answers: Array, given: NDArray) -> tuple[NDArray[np.bool_], Array]:
    """(N,) whether a target looks wrong, and how much that says."""
    if given.ndim == 1:
        largest = np.sort(answers, axis=1)[:, ::-1]
        return answers.argmax(1) != given, largest[:, 0] - largest[:, 1]
    residual = np.sqrt(((answers - given) ** 2).sum(1))
    # From the smallest quarter, where few are wrong even if most are; of normal residuals its bound is half the median.
    limit = 2 * FAR * float(np.quantile(residual, 0.25))
    for _ in range(20):  # the median of those within the limit moves, and the limit with it, until both stand still
        limit, before = FAR * float(np.median(residual[residual <= limit])), limit
        if limit == before:
            break
    return residual > limit, np.ones(len(given))


def weigh_suspects(is_suspect: NDArray[np.bool_], says: Array, weights: Array) -> float:
    total = float(says @ weights)
    return float((is_suspect * says) @ weights) / total if total > 0 else 0.0


def estimate_and_interval(
    answers: dict[float, NDArray], choice: Choice | None, targets: ArrayLike, weights: ArrayLike | None, seed: int
) -> tuple[float, tuple[float, float]]:
    """The best candidate's estimate; and between which most estimates lie when rows are drawn anew, and choose anew."""
    stacked, given = read_rows(stack(answers), targets)
    found = [suspects(each, given) for each in stacked]
    weight = read_weights(weights, len(given))
    best, winners = (choice.best, choice.resampled) if choice else (0, np.zeros(RESAMPLES, dtype=np.int64))
    drawn = [
        weigh_suspects(*found[int(winner)], weight * copies)
        for winner, copies in zip(winners, resamples(len(given), seed), strict=True)
    ]
    lower, upper = np.percentile(drawn, INTERVAL)
    return weigh_suspects(*found[best], weight), (float(lower), float(upper))
