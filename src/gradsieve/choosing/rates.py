"""The drop rate that nobody knows: train at several rates, let held-out rows choose.

The rows that vote are as wrong as those that the candidates are trained on. Candidates start from the same weights and
see the same batches. At 30 % and at 60 % of the epochs those stop that are far from the best, and two run to the end;
of few rows so many that the winner has won against both of its neighbours.

Of many rows the candidates see a sample, which says whether dropping does good, but may be too small to learn from how
many labels are wrong. That is then asked of a network that has seen all other rows a few times and dropped none: wrong
labels are learnt by heart later.

If nearly half of the real-valued targets are wrong, a network may learn either half, and which one is luck. How many
are wrong is then asked of two networks that compete for the rows, and for few rows the fit to all of them is rehearsed.
If either contradicts the networks that were chosen, nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing import RATES
from gradsieve.choosing.ballot import Vote, hold_vote, last_vote
from gradsieve.choosing.electorate import Electorate, Part
from gradsieve.choosing.estimate import suspects, tolerance
from gradsieve.choosing.judge import agree
from gradsieve.choosing.outcome import doubt, estimate_and_interval, knowing_answers, rate_by_census, rate_by_race
from gradsieve.choosing.pick import LEAST_ROWS, RatePick, too_few
from gradsieve.choosing.reading import Array, read_rows
from gradsieve.choosing.rivals import Division, divide, know_enough, may_be_bent
from gradsieve.choosing.vote import choose
from gradsieve.errors import GradsieveError, InputError, RankError

RUNGS = ((0.3, 3), (0.6, 2), (1.0, 1))  # at this share of the epochs, so many stay
CENSUS = 0.1  # of the epochs: how long a census takes, in which no network has yet learnt wrong labels by heart
KNOWING = 0.9  # of the labels that the winner meets: fewer, and a census is not heard


class Candidate(Protocol):
    """A network at one drop rate, on its way."""

    def train(self, share: float) -> None:
        """Go on until this share of all epochs is done."""
        ...

    def predict(self) -> NDArray:
        """Probabilities (N, C) or outputs (N, q) for the voting rows."""
        ...


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
    electorate: Electorate,
    targets: NDArray,
    *,
    weights: NDArray | None = None,
    seed: int = 0,
    rivals: Callable[[Part], NDArray] | None = None,
) -> RatePick:
    """Let the rows choose between candidates of several networks: ``start(rate, part)`` is that on one of the parts.

    ``targets`` and ``weights`` are those of all rows. Sets so small that they have several parts have time to be
    thorough; of larger ones, if they are classes, a census is taken. ``rivals(part)``: what two networks that rival for
    its rows say about its voters, (2, N, q), the majority's first.
    """
    if len(targets) < LEAST_ROWS:
        return too_few(len(targets))
    parts, voters = electorate.parts, electorate.whole.voters.numpy()
    is_small = len(parts) > 1
    return pick_rate(
        lambda rate: Together([start(rate, part) for part in parts]),
        targets[voters],
        weights=None if weights is None else weights[voters],
        seed=seed,
        is_thorough=is_small,
        ends=np.cumsum([len(part.voters) for part in parts])[:-1].tolist(),
        rehearsal=(lambda rate: start(rate, electorate.whole)) if is_small else None,
        census=None if is_small else lambda: start(0.0, parts[0].widened()),
        rivals=None if rivals is None else lambda: np.concatenate([rivals(part) for part in parts], axis=1),
    )


def pick_rate(
    start: Callable[[float], Candidate],
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
    rates: Sequence[float] = RATES,
    is_thorough: bool = False,
    ends: Sequence[int] = (),
    rehearsal: Callable[[float], Candidate] | None = None,
    census: Callable[[], Candidate] | None = None,
    rivals: Callable[[], NDArray] | None = None,
) -> RatePick:
    """Race candidates at ascending ``rates``, the first of them 0, and let the voting rows' ``targets`` choose.

    ``is_thorough``: as `hold_race` has it. ``rehearsal`` starts the fit of amounts to all rows at a rate. ``rivals``:
    what two networks say that rival for amounts, (2, N, q), the majority's first; they are asked where so many may be
    wrong that the candidates cannot say how many. If either contradicts the winner, none is dropped. ``ends``: where
    the voters of a candidate's next network begin. ``census`` starts a network that will know classes better than the
    candidates do; the estimate is then its own.
    """
    votes = hold_race(start, targets, weights, rates, is_thorough)
    last = votes[-1]
    best, winner, choice = last.verdict.best, last.names[last.verdict.best], None
    if len(last.names) > 1:
        choice = choose(last.heard, last.given, names=last.names, weights=weights, seed=seed)
    counted = hold_census(census, last, best) if census is not None and last.given.ndim == 1 else None
    knowing = knowing_answers(last, best) if counted is None else counted
    estimate, interval = estimate_and_interval(suspects(knowing, last.given), last.weights, seed)
    rate = rate_by_race(votes, estimate) if counted is None else rate_by_census(last, estimate, max(rates))
    divided = None if rivals is None else ask_rivals(rivals, targets, last, best, max(winner, estimate))
    if divided is not None:
        says = np.ones(len(divided.is_suspect))
        estimate, interval = estimate_and_interval((divided.is_suspect, says), last.weights, seed)
    refuted, can_go_astray = 0.0, last.given.ndim > 1 and rate > rates[0]
    if can_go_astray and is_contradicted(last.answers[best], targets, ends, divided, rehearsal and rehearsal(rate)):
        rate, refuted = rates[0], rate
    margins, errors, trained = zip(*(last_vote(each, winner, votes) for each in rates), strict=True)
    pick = RatePick(rate, estimate, interval, "", winner, tuple(rates), margins, errors, trained, choice)
    return replace(pick, warning=doubt(pick, votes, refuted, is_divided=divided is not None))


def hold_race(
    start: Callable[[float], Candidate],
    targets: ArrayLike,
    weights: ArrayLike | None,
    rates: Sequence[float],
    is_thorough: bool,
) -> list[Vote]:
    """The votes of a race, the last of which has the winner.

    ``is_thorough``: rate 0 stays until it is clearly behind, of classes to the end. Networks that have hardly learnt
    anything by the first vote are judged by how sure they are, and what drops rows for no good is found out later. Then
    both neighbours of whatever wins are trained to the end, too, until it has won against them: early votes tend to
    small rates.
    """
    runners = {rate: start(rate) for rate in rates}
    votes: list[Vote] = []
    answers: dict[float, NDArray] = {}
    staying = set(rates)
    for share, stay in RUNGS:
        answers = advance(runners, staying, share)
        vote = hold_vote(share, answers, targets, weights, rates[0], votes)
        votes.append(vote)
        staying = {vote.names[each] for each in neighbours(vote, stay)}
        if is_thorough and (vote.given.ndim == 1 or rates[0] in (vote.names[each] for each in vote.verdict.even)):
            staying.add(rates[0])
        if not is_thorough:
            runners = {rate: runner for rate, runner in runners.items() if rate in staying}  # the others are let go
    while is_thorough and (beside := next_to_winner(votes[-1], rates) & runners.keys() - answers.keys()):
        answers = advance(runners, beside, 1.0, answers)
        votes.append(hold_vote(1.0, answers, targets, weights, rates[0], votes))
    return votes


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
        answer = answer_at(share, runners[rate])
        if isinstance(answer, GradsieveError):
            failure = answer
            del runners[rate]
        else:
            answers[rate] = answer
    if not answers and failure is not None:
        raise failure
    return dict(sorted(answers.items()))


def answer_at(share: float, runner: Candidate) -> NDArray | GradsieveError:
    """What a network says after this share of its epochs, or why its training diverged."""
    try:
        runner.train(share)
        answer = runner.predict()
        is_finite = np.asarray(answer).dtype.kind != "f" or bool(np.isfinite(answer).all())
        return answer if is_finite else GradsieveError("The training has diverged: what is predicted is not finite.")
    except (InputError, RankError):  # of a loop that is not ours, of a rank that is lost: no defeat
        raise
    except GradsieveError as error:
        return error


def hold_census(census: Callable[[], Candidate], last: Vote, best: int) -> Array | None:
    """What the network of a census says about the voting rows.

    None where it knows far less than the winner, in epochs too few, or where its training diverges.
    """
    answer = answer_at(CENSUS, census())
    if isinstance(answer, GradsieveError):
        return None
    counted = read_rows(answer[None], last.given)[0][0]
    met, met_by_winner = (last.weights @ (each.argmax(1) == last.given) for each in (counted, last.answers[best]))
    return counted if met >= KNOWING * met_by_winner else None


def ask_rivals(
    rivals: Callable[[], NDArray], targets: ArrayLike, last: Vote, best: int, wrong: float
) -> Division | None:
    """How two rivals divide the rows, ``wrong`` of which seem wrong to the winner; None where nobody can tell."""
    if last.given.ndim == 1 or not may_be_bent(last, best, wrong):
        return None
    try:
        said = read_rows(rivals(), targets)[0]
    except (InputError, RankError):
        raise
    except GradsieveError:  # their training has diverged
        return None
    if not know_enough(said[0], last.answers[best], last.given):
        return None
    return divide(said, last.given, last.weights)


def is_contradicted(
    said: Array, targets: ArrayLike, ends: Sequence[int], divided: Division | None, rehearsal: Candidate | None
) -> bool:
    """Whether the majority's rival or the fit to all rows differs altogether from what the winner has ``said``.

    It does where half of the winner's networks differ from it.
    """
    small = tolerance(said)  # networks that have hardly learnt anything hardly vary

    def differs(other: Array) -> bool:
        pairs = zip(np.split(other, ends), np.split(said, ends), strict=True)
        return sum(agree(*pair, within=small) for pair in pairs) <= (len(ends) + 1) / 2

    if divided is not None and differs(divided.majority):
        return True
    if rehearsal is None:
        return False
    answer = answer_at(1.0, rehearsal)
    return isinstance(answer, GradsieveError) or differs(read_rows(answer[None], targets)[0][0])
