"""Which of several models is best, by a vote of held-out rows with as many wrong targets as all the others.

Two models disagree on some rows. Each row votes for the one that is closer to its given target, with the squared
disagreement as its weight. While the honest rows are the majority at each input, the better model wins; and where no
row is wrong, the hard rows outvote a model that ignored them. A mean error would be decided by the wrong rows alone.
For classes the same idea is the mean probability that a model gives to the given labels, after all models have been
made equally sure (``gradsieve.choosing.sharpen``). It is bounded, so that a wrong label costs no more than a right one
brings in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve import seeds
from gradsieve.choosing.reading import Array, read_rows, read_weights, to_numbers
from gradsieve.choosing.sharpen import comparable
from gradsieve.errors import InputError

Prefer = Literal["none", "first", "baseline"]

CLIP = 0.99  # no row weighs more than this quantile of the weights: a single wild prediction must not decide
LEEWAY = 0.5  # standard errors by which a preferred model may be behind and still count as the best
SURE = 2.0  # standard errors by which the best must lead every other model to be decided
RESAMPLES = 200  # bootstrap samples


@dataclass(frozen=True, eq=False)
class Choice:
    """How held-out rows rank M models."""

    best: int  # the number of the best model
    ranking: tuple[int, ...]  # the best first, then by each model's worst margin against any other
    margins: Array  # (M, M): margins[a, b] is above 0 if the rows prefer model a to model b
    errors: Array  # (M, M) their standard errors
    confidence: float  # the share of resampled sets of rows in which the same model is best
    decided: bool  # whether the best leads every other model by two standard errors; if not, the rows hardly tell
    names: tuple[Any, ...]  # of the models; their numbers if none were given
    resampled: NDArray[np.int64]  # the best model of each resampled set of rows

    @property
    def name(self) -> Any:
        """The name of the best model."""
        return self.names[self.best]


class Ballots(NamedTuple):
    """Every row's vote on every pair of models: margin = gains.sum / weights.sum."""

    gains: Array  # (pairs, N) for the first of the two, against it where negative
    weights: Array  # (pairs, N)


def choose(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    prefer: Prefer = "none",
    names: Sequence[Any] | None = None,
    weights: ArrayLike | None = None,
    seed: int = 0,
) -> Choice:
    """Rank M models by their predictions for N held-out rows, some of whose targets are wrong.

    ``predictions`` are real-valued outputs (M, N) or (M, N, q). For classes they are probabilities (M, N, C), and
    ``targets`` integers (N,); if these are all 0 or 1, ``predictions`` may also be the probability of class 1, (M, N).

    ``prefer="first"``: list the models in your order of preference; the first one that is at most half a standard error
    behind the winner counts as the best. ``prefer="baseline"`` gives this privilege to model 0 alone. ``weights`` (N,)
    make some rows count more than others. Classifiers may be of any kind: how sure they are of themselves does not
    count, since their probabilities are first raised to powers that make all of them equally sure.
    """
    answers, given = read_rows(predictions, targets)
    if names is not None and len(names) != len(answers):
        raise InputError(f"names has {len(names)} entries, but predictions are of {len(answers)} models.")
    weight = read_weights(weights, len(given))
    return count_votes(comparable(answers, given, weight), given, weight, prefer, names, seed)


def count_votes(
    answers: Array, given: NDArray, weights: Array, prefer: Prefer, names: Sequence[Any] | None, seed: int
) -> Choice:
    """What rows say about `comparable` answers (M, N, k)."""
    count, rows = answers.shape[:2]
    ballots = ballots_of(answers, given, weights)
    ranking, margins, errors = tally(ballots, np.ones(rows), count, prefer)
    again = np.array([tally(ballots, copies, count, prefer).ranking[0] for copies in resamples(rows, seed)])
    best = ranking[0]
    others = np.arange(count) != best
    return Choice(
        best=best,
        ranking=ranking,
        margins=margins,
        errors=errors,
        confidence=float((again == best).mean()),
        decided=bool((margins[best] > SURE * errors[best])[others].all()),
        names=tuple(range(count)) if names is None else tuple(names),
        resampled=again,
    )


def resamples(rows: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each row is drawn in each of many draws of ``rows`` rows, with replacement: the bootstrap."""
    random = np.random.default_rng(seeds.derive(seed, "resamples"))
    for _ in range(RESAMPLES):
        yield np.bincount(random.integers(rows, size=rows), minlength=rows)


def ballots_of(answers: Array, given: NDArray, weights: Array) -> Ballots:
    """The votes of all rows on all pairs."""
    if len(answers) < 2:
        raise InputError("predictions are of 1 model, but a choice needs two: the shape is (models, rows, ...).")
    pairs = list(combinations(range(len(answers)), 2))
    if given.ndim == 1:
        sure = answers[:, np.arange(len(given)), given]  # (M, N): how probable each model finds the given label
        gains = [weights * (sure[a] - sure[b]) for a, b in pairs]
        return Ballots(np.array(gains), np.broadcast_to(weights, (len(pairs), len(weights))))
    distance = ((answers - given) ** 2).sum(2)  # (M, N)
    weighed, gains = [], []
    for a, b in pairs:
        disagreement = ((answers[a] - answers[b]) ** 2).sum(1)
        # The quantile is over rows of disagreement: over all, it would be 0 for models that nearly always agree.
        most = np.quantile(disagreement[disagreement > 0], CLIP) if disagreement.any() else 0.0
        weight = weights * np.minimum(disagreement, most)
        weighed.append(weight)
        gains.append(weight * np.sign(distance[b] - distance[a]))
    return Ballots(np.array(gains), np.array(weighed))


class VoteResult(NamedTuple):
    """What a vote says about M models, as `Choice` has it."""

    ranking: tuple[int, ...]
    margins: Array
    errors: Array


def tally(ballots: Ballots, copies: NDArray, count: int, prefer: Prefer) -> VoteResult:
    """Count the votes, each row ``copies`` (N,) times. Models are ranked by their worst margin against any other."""
    if prefer not in ("none", "first", "baseline"):
        raise InputError(f"prefer is {prefer!r}, but must be 'none', 'first' or 'baseline'.")
    total = ballots.weights @ copies
    total = np.where(total > 0, total, 1)  # two models that never disagree: a margin of 0
    margin = ballots.gains @ copies / total
    error = np.sqrt((ballots.gains - margin[:, None] * ballots.weights) ** 2 @ copies) / total
    margins, errors = np.zeros((count, count)), np.zeros((count, count))
    first, second = np.array(list(combinations(range(count), 2))).T
    margins[first, second], margins[second, first] = margin, -margin
    errors[first, second] = errors[second, first] = error
    standing = np.where(np.eye(count, dtype=bool), np.inf, margins).min(1)
    ranking = np.argsort(-standing, kind="stable").tolist()
    best = ranking[0]
    preferred = {"none": 0, "first": best, "baseline": min(1, best)}[prefer]
    best = next((a for a in range(preferred) if margins[a, best] >= -LEEWAY * errors[a, best]), best)
    return VoteResult((best, *(each for each in ranking if each != best)), margins, errors)


def noisy_mean(predictions: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None) -> float:
    """One model's score: by classes, what `choose` compares; else minus its mean distance from the given targets."""
    answers, given = read_rows(to_numbers(predictions, "predictions")[None], targets)
    weight = read_weights(weights, len(given))
    answers, is_classes = comparable(answers, given, weight), given.ndim == 1
    scores = answers[0, np.arange(len(given)), given] if is_classes else -np.sqrt(((answers[0] - given) ** 2).sum(1))
    return float(np.average(scores, weights=weight))
