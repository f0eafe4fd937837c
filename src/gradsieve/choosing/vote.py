"""Which of several models is best, asked of held-out rows whose targets are as wrong as all the others.

Two models disagree on some rows. Each row votes for the one that is closer to its given target, with the squared
disagreement as its weight. While the honest rows are the majority at each input, the better model wins; and where no
row is wrong, the hard rows outvote a model that ignored them. A mean error would be decided by the wrong rows alone.
For classes the same idea is the mean probability that a model gives to the given labels: it is bounded, so that a
wrong label costs a confident model no more than a hesitant one gains by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gradsieve import seeds
from gradsieve.errors import InputError

Array = NDArray[np.float64]
Prefer = Literal["none", "first", "baseline"]

CLIP = 0.99  # no row weighs more than this quantile of the weights: a single wild prediction must not decide
PATIENCE = 0.5  # standard errors by which a preferred model may be behind
SURE = 2.0  # standard errors by which the best must lead every other
RESAMPLES = 200
SUM_TOLERANCE = 1e-3  # by which the probabilities of a row may miss 1


@dataclass(frozen=True, eq=False)
class Choice:
    """What the rows say about M models."""

    best: int
    ranking: tuple[int, ...]  # the best first, then by the worst margin against any other
    margins: Array  # (M, M): above 0 where the rows prefer the model of the row to the model of the column
    errors: Array  # (M, M) their standard errors
    confidence: float  # the share of resampled sets of rows in which the same model is best
    decided: bool  # whether the best leads every other by two standard errors; False: the rows hardly tell
    names: tuple[Any, ...]  # of the models; their numbers where none were given
    resampled: NDArray[np.int64]  # the best of each resampled set of rows

    @property
    def name(self) -> Any:
        """The name of the best."""
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

    ``predictions`` are (M, N) or (M, N, q) real outputs, or (M, N, C) probabilities where ``targets`` are integer
    classes (N,). ``prefer="first"``: models come in the order of preference, and the first that is at most half a
    standard error behind the winner is the best. ``prefer="baseline"``: that holds for model 0 alone, which is to be
    left for good reason only. ``weights`` (N,) make some rows count more than others.
    """
    answers, given = read_rows(predictions, targets)
    count, rows = answers.shape[:2]
    if names is not None and len(names) != count:
        raise InputError(f"names has {len(names)} entries, but predictions are of {count} models.")
    ballots = cast(answers, given, read_weights(weights, rows))
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


def cast(answers: Array, given: NDArray, weights: Array) -> Ballots:
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
        weight = weights * np.minimum(disagreement, np.quantile(disagreement, CLIP))
        weighed.append(weight)
        gains.append(weight * np.sign(distance[b] - distance[a]))
    return Ballots(np.array(gains), np.array(weighed))


class VoteResult(NamedTuple):
    """What a vote says about M models, as `Choice` has it."""

    ranking: tuple[int, ...]
    margins: Array
    errors: Array


def tally(ballots: Ballots, copies: NDArray, count: int, prefer: Prefer) -> VoteResult:
    """Count the votes, each row as often as ``copies`` (N,) says. A model stands where its worst margin is."""
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
    best = next((a for a in range(preferred) if margins[a, best] >= -PATIENCE * errors[a, best]), best)
    return VoteResult((best, *(each for each in ranking if each != best)), margins, errors)


def read_rows(predictions: ArrayLike, targets: ArrayLike) -> tuple[Array, NDArray]:
    """Predictions (M, N, k), with targets (N,) int64 for classes or (N, k) for real outputs, checked.

    Real outputs are brought to one width, the interquartile range of their targets, so that they weigh alike.
    """
    answers, given = to_numbers(predictions, "predictions").astype(np.float64), to_numbers(targets, "targets")
    if answers.ndim not in (2, 3):
        raise InputError(
            f"predictions have the shape {answers.shape}, but must be (models, rows) or (models, rows, k)."
        )
    if given.ndim not in (1, 2) or answers.shape[1] != len(given):
        raise InputError(f"targets have the shape {given.shape}, but predictions are of {answers.shape[1]} rows.")
    if not len(given):
        raise InputError(
            "There are no rows: predictions and targets are empty. Hold some rows out, so that they can vote."
        )
    if not np.isfinite(answers).all():
        model, row = np.argwhere(~np.isfinite(answers))[0, :2]
        raise InputError(f"predictions[{model}, {row}] is not finite. Leave a model that has diverged out.")
    is_label = given.dtype.kind in "iub"
    if answers.ndim == 3 and given.ndim == 1 and is_label and answers.shape[2] > 1:
        check_probabilities(answers, given)
        return answers, given.astype(np.int64)
    answers, given = answers.reshape(*answers.shape[:2], -1), given.reshape(len(given), -1).astype(np.float64)
    if answers.shape[2] != given.shape[1]:
        hint = "" if is_label else " Labels of classes must be integers, 0 to C - 1."
        raise InputError(f"predictions have {answers.shape[2]} outputs a row, but targets {given.shape[1]}.{hint}")
    if not np.isfinite(given).all():
        row = int(np.argwhere(~np.isfinite(given))[0, 0])
        raise InputError(f"targets[{row}] is not finite. Leave the row out: it cannot vote.")
    lower, upper = np.quantile(given, (0.25, 0.75), axis=0)
    width = np.where(upper > lower, upper - lower, 1.0)
    return answers / width, given / width


def to_numbers(values: Any, name: str) -> NDArray:
    """An array of numbers. Tensors may lie on any device and be part of a graph, and there may be a list of them."""
    if isinstance(values, Mapping):
        raise InputError(
            f"{name} is a {type(values).__name__}, but must be an array. Give list({name}.values()), with "
            f"names=list({name})."
        )
    try:
        array = np.asarray(held(values))
    except ValueError:
        raise InputError(f"{name} are of unequal lengths, but must be of the same rows and as many outputs.") from None
    if array.dtype.kind == "O" and array.ndim:  # a column of a frame may hold numbers all the same
        array = np.asarray(array.tolist())
    if array.dtype.kind not in "biuf":
        values = array.ravel().tolist()
        place = next((place for place, value in enumerate(values) if not isinstance(value, Real)), 0)
        where = f"[{place * len(array) // len(values)}]" if array.ndim else ""
        raise InputError(
            f"{name}{where} is {values[place]!r}, but {name} must be numbers, for classes 0 to C - 1 (numpy.unique "
            "with return_inverse=True gives them)."
        )
    return array


def held(values: Any) -> Any:
    """What tensors hold."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # numpy has no bfloat16
    return [held(each) for each in values] if isinstance(values, list | tuple) else values


def check_probabilities(answers: Array, given: NDArray) -> None:
    """Classes are judged by probabilities: logits would be nonsense."""
    classes = answers.shape[2]
    wrong = np.flatnonzero((given < 0) | (given >= classes))
    if len(wrong):
        raise InputError(f"targets[{wrong[0]}] is {given[wrong[0]]}, but predictions have classes 0 to {classes - 1}.")
    off = np.argwhere((answers.min(2) < -SUM_TOLERANCE) | (np.abs(answers.sum(2) - 1) > SUM_TOLERANCE))
    if len(off):
        model, row = off[0]
        raise InputError(
            f"predictions[{model}, {row}] are no probabilities: they must be at least 0 and add up to 1. "
            "Apply softmax to logits first."
        )


def noisy_mean(predictions: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None) -> float:
    """One model's mean probability of the given labels, or minus its mean distance from the given targets."""
    answers, given = read_rows(to_numbers(predictions, "predictions")[None], targets)
    is_classes = given.ndim == 1
    scores = answers[0, np.arange(len(given)), given] if is_classes else -np.sqrt(((answers[0] - given) ** 2).sum(1))
    return float(np.average(scores, weights=read_weights(weights, len(given))))


def read_weights(weights: ArrayLike | None, rows: int) -> Array:
    """(N,) weights of the rows; 1 where none are given."""
    if weights is None:
        return np.ones(rows)
    values = np.asarray(held(weights))
    if values.shape != (rows,) or values.dtype.kind not in "biuf":
        raise InputError(f"weights must be {rows} numbers, one for each row, but are {values.dtype} of {values.shape}.")
    is_bad = ~(np.isfinite(values) & (values >= 0))
    if is_bad.any() or not values.any():
        row = int(is_bad.argmax())
        raise InputError(f"weights[{row}] is {values[row]}, but weights must be 0 or more, and not all of them 0.")
    return values.astype(np.float64)


def class_numbers(labels: NDArray, classes: NDArray) -> NDArray[np.int64]:
    """The place of each label among an estimator's sorted classes."""
    places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    strange = np.flatnonzero(classes[places] != labels)
    if len(strange):
        row = int(strange[0])
        raise InputError(
            f"y[{row}] is {labels[row]!r}, which is no class of the estimator. Leave such rows out, or give the y that "
            "it was fitted to."
        )
    return places
