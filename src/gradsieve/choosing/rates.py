"""Choosing an unknown drop rate: candidates are trained at several rates, and held-out rows vote on them.

The rows that vote are as wrong as those that the candidates are trained on. Candidates start from the same weights and
see the same batches. After 30 % and 60 % of the epochs those far from the best stop, and two run to the end; with few
rows, as many run to the end as it takes for the winner to beat both of its neighbours.

If there are many rows, candidates are trained on a sample. That tells whether dropping does good, but the sample may be
too small for a network to tell how many labels are wrong. So a census is taken: a network is trained on all rows but
the voters, without dropping, for so few epochs that it has not yet memorized wrong labels.

If nearly half of the real-valued targets are wrong, it is chance which half a network learns. Then the wrong ones are
counted by two networks that compete for the rows, and the fit to all rows is asked about the voters before it counts.
If either contradicts the winner, nothing is dropped.
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
from gradsieve.choosing.electorate import LESSER, Electorate, Part
from gradsieve.choosing.estimate import suspects, tolerance
from gradsieve.choosing.finer import counts, finer, is_worth_it
from gradsieve.choosing.judge import agree
from gradsieve.choosing.outcome import candidate_to_count_by, doubt, estimate_and_interval, rate_by_census, rate_by_race
from gradsieve.choosing.pick import LEAST_ROWS, RatePick, too_few
from gradsieve.choosing.reading import Array, read_rows
from gradsieve.choosing.rivals import NEAR_HALF, Division, divide, has_learned_enough, may_be_bent
from gradsieve.choosing.vote import count_votes
from gradsieve.errors import GradsieveError, InputError, RankError

RUNGS = ((0.3, 3), (0.6, 2), (1.0, 1))  # the share of the epochs after which a vote is held, and how many then stay
CENSUS = 0.1  # the share of the epochs that a census takes: before networks memorize wrong labels
LEAST_HITS = 0.9  # labels that a census must predict, as a share of those that the winner predicts


class Candidate(Protocol):
    """A network in training at one drop rate."""

    def train(self, share: float) -> None:
        """Train until this share of all epochs is done."""
        ...

    def predict(self) -> NDArray:
        """Probabilities (N, C) or outputs (N, q) for the voting rows."""
        ...


class Together:
    """A candidate made of several networks, one for each part of an electorate."""

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
    has_curve: bool = False,
    fit: Callable[[float], Candidate] | None = None,
) -> RatePick:
    """Choose a rate by a race; ``start(rate, part)`` makes the candidate's network for one part of the electorate.

    ``targets`` and ``weights`` are those of all rows. Small sets, which have several parts, are raced thoroughly; for
    the classes of larger ones a census is taken. ``rivals(part)`` returns what two networks that compete for the part's
    rows predict for its voters, (2, N, q), the majority's first. ``has_curve``: ``start`` can make networks for a
    quarter of a part's rows, too, so that small sets of real-valued targets have a learning curve. ``fit(rate)``
    starts the fit to all rows, if the caller keeps it. Otherwise it costs a fit to ask it, and of many rows it is asked
    only if nearly half of them would be dropped.
    """
    if len(targets) < LEAST_ROWS:
        return too_few(len(targets))
    parts, voters = electorate.parts, electorate.whole.voters.numpy()
    is_small = len(parts) > 1
    has_curve = has_curve and is_small  # that of a single network says too little

    def rehearse(rate: float) -> Candidate | None:
        return start(rate, electorate.whole) if is_small or rate >= NEAR_HALF else None

    return pick_rate(
        lambda rate: Together([start(rate, part) for part in parts]),
        targets[voters],
        weights=None if weights is None else weights[voters],
        seed=seed,
        is_thorough=is_small,
        ends=np.cumsum([len(part.voters) for part in parts])[:-1].tolist(),
        fit=fit or rehearse,
        census=None if is_small else lambda: start(0.0, parts[0].widened()),
        rivals=None if rivals is None else lambda: np.concatenate([rivals(part) for part in parts], axis=1),
        lesser=(lambda rate: Together([start(rate, each.lessened()) for each in parts])) if has_curve else None,
        seen=len(parts[0].trained) / len(targets),
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
    fit: Callable[[float], Candidate | None] | None = None,
    census: Callable[[], Candidate] | None = None,
    rivals: Callable[[], NDArray] | None = None,
    lesser: Callable[[float], Candidate] | None = None,
    seen: float = 1.0,
) -> RatePick:
    """Race candidates at ascending ``rates``, the first of them 0, and let the voting rows' ``targets`` choose.

    ``is_thorough``: see `hold_race`. ``ends``: where the voters of a candidate's second and further networks begin.
    ``census`` starts a network that learns classes better than the candidates; the estimate is then made from it. For
    real-valued targets, ``fit`` starts the fit to all rows at a rate, and ``rivals`` returns the predictions of two
    rival networks, (2, N, q), the majority's first; it is called if too many targets may be wrong for the candidates
    to count them. If the fit or the majority's rival contradicts the winner, nothing is dropped.
    ``lesser`` starts a candidate on a quarter of its rows, and ``seen`` is the share of all rows that the others learn
    from: if there are no rivals, a learning curve tells which mistakes the candidates are too coarse to see.
    """
    votes = hold_race(start, targets, weights, rates, is_thorough)
    last = votes[-1]
    best, winner, is_classes = last.verdict.best, last.names[last.verdict.best], last.given.ndim == 1
    choice = None
    if len(last.names) > 1:
        choice = count_votes(last.judged, last.given, last.weights, "none", last.names, seed)
    census_answers = hold_census(census, last, best) if census is not None and is_classes else None
    counting = candidate_to_count_by(last, best)
    is_suspect, trust = suspects(last.answers[counting] if census_answers is None else census_answers, last.given)
    estimate, interval = estimate_and_interval(is_suspect, last.weights, seed, trust)
    rate = rate_by_race(votes, estimate) if census_answers is None else rate_by_census(last, estimate, max(rates))
    wrong = max(winner, estimate)
    divided = None if rivals is None else ask_rivals(rivals, targets, last, best, wrong)
    found = None if divided is None else divided.is_suspect
    if found is None and lesser is not None:
        found = count_by_curve(lesser, targets, last, counting, (1 - wrong) * seen)
    if found is not None:
        estimate, interval = estimate_and_interval(found, last.weights, seed)
    refuted = 0.0
    drops = rate > rates[0] and not is_classes
    if drops and is_contradicted(last.answers[best], targets, ends, divided, fit and fit(rate)):
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
    """All votes of a race; the last one has the winner.

    ``is_thorough``: rate 0 stays until it is clearly behind, for classes to the end, because early votes go by how sure
    networks are that have hardly learned anything, and needless dropping shows late. And the winner's neighbours are
    trained to the end as well, until a winner has beaten both of its own, because early votes tend to small rates.
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
        if is_thorough and (vote.given.ndim == 1 or rates[0] in (vote.names[each] for each in vote.verdict.tied)):
            staying.add(rates[0])
        if not is_thorough:
            runners = {rate: runner for rate, runner in runners.items() if rate in staying}  # frees the others' memory
    while is_thorough and (beside := next_to_winner(votes[-1], rates) & runners.keys() - answers.keys()):
        answers = advance(runners, beside, 1.0, answers)
        votes.append(hold_vote(1.0, answers, targets, weights, rates[0], votes))
    return votes


def neighbours(vote: Vote, count: int) -> list[int]:
    """The best and those nearest to its rate: of rates that are behind early, only near ones may lead late."""
    best, place = vote.names[vote.verdict.best], vote.verdict.result.ranking.index
    by_distance = sorted(range(len(vote.names)), key=lambda each: (round(abs(vote.names[each] - best), 6), place(each)))
    return sorted(by_distance[:count])


def next_to_winner(vote: Vote, rates: Sequence[float]) -> set[float]:
    """The rates next to the winner's, below and above."""
    place = list(rates).index(vote.names[vote.verdict.best])
    return {*rates[max(0, place - 1) : place], *rates[place + 1 : place + 2]}


def advance(
    runners: dict[float, Candidate], rates: AbstractSet[float], share: float, known: dict[float, NDArray] | None = None
) -> dict[float, NDArray]:
    """Train candidates on; their predictions for the voting rows, added to those ``known``, in the order of the rates.

    One whose training diverges is out and has lost, unless all do.
    """
    answers = dict(known or {})
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
    """What a network predicts after this share of its epochs, or why its training diverged."""
    try:
        runner.train(share)
        answer = runner.predict()
        is_finite = np.asarray(answer).dtype.kind != "f" or bool(np.isfinite(answer).all())
        return answer if is_finite else GradsieveError("The training has diverged: its predictions are not finite.")
    except (InputError, RankError):  # the caller's mistake, or a lost rank: no defeat
        raise
    except GradsieveError as error:
        return error


def hold_census(census: Callable[[], Candidate], last: Vote, best: int) -> Array | None:
    """What the network of a census predicts for the voting rows.

    None if it predicts far fewer labels than the winner, because its epochs are too few, or if its training diverges.
    """
    answer = answer_at(CENSUS, census())
    if isinstance(answer, GradsieveError):
        return None
    counted = read_rows(answer[None], last.given)[0][0]
    hits, winner_hits = (last.weights @ (each.argmax(1) == last.given) for each in (counted, last.answers[best]))
    return counted if hits >= LEAST_HITS * winner_hits else None


def ask_rivals(
    rivals: Callable[[], NDArray], targets: ArrayLike, last: Vote, best: int, wrong: float
) -> Division | None:
    """How two rivals divide the rows, the share ``wrong`` of which seems wrong to the winner; None if they cannot."""
    if last.given.ndim == 1 or not may_be_bent(last, best, wrong):
        return None
    try:
        answers = read_rows(rivals(), targets)[0]
    except (InputError, RankError):
        raise
    except GradsieveError:  # their training has diverged
        return None
    if not has_learned_enough(answers[0], last.answers[best], last.given):
        return None
    return divide(answers, last.given, last.weights)


def count_by_curve(
    lesser: Callable[[float], Candidate], targets: ArrayLike, last: Vote, number: int, right: float
) -> Array | None:
    """How many wrong rows each row stands for by a candidate's predictions and its learning curve; None without one.

    ``right``: the number of right rows that it learned from, as a share of all rows.
    """
    if last.given.ndim == 1 or not is_worth_it(last.answers[number], last.given, last.weights, right):
        return None
    answer = answer_at(1.0, lesser(last.names[number]))
    if isinstance(answer, GradsieveError):
        return None
    answers = last.answers[number], read_rows(answer[None], targets)[0][0]
    return counts(answers[0], last.given, finer(*answers, last.given, LESSER, right))


def is_contradicted(
    winner: Array, targets: ArrayLike, ends: Sequence[int], divided: Division | None, fit: Candidate | None
) -> bool:
    """Whether the majority's rival or the fit to all rows contradicts the predictions of the ``winner``.

    It does if it contradicts half of the winner's networks.
    """
    small = tolerance(winner)  # networks that have hardly learned anything hardly vary

    def differs(other: Array) -> bool:
        pairs = zip(np.split(other, ends), np.split(winner, ends), strict=True)
        return sum(agree(*pair, within=small) for pair in pairs) <= (len(ends) + 1) / 2

    if divided is not None and differs(divided.majority):
        return True
    if fit is None:
        return False
    answer = answer_at(1.0, fit)
    return isinstance(answer, GradsieveError) or differs(read_rows(answer[None], targets)[0][0])
