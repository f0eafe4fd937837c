"""The vote for scikit-learn: a score for one model at a time, and a ranking of several that are fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing.reading import class_numbers
from gradsieve.choosing.vote import Choice, Prefer, choose, noisy_mean
from gradsieve.errors import InputError, MissingExtraError

try:
    from sklearn.base import is_classifier
except ImportError as error:
    raise MissingExtraError("scikit-learn 1.6 or newer", "sklearn", "Scoring estimators") from error


def noisy_score(estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """A scorer for ``GridSearchCV(..., scoring=noisy_score)`` if ``y`` cannot be trusted; larger is better.

    For classes, it is what `choose` compares: the mean probability of the given labels, if the model is made as sure of
    itself as any other. For real-valued targets, it is minus the mean distance from them, in interquartile ranges of
    ``y``. A scorer sees one model at a time and cannot compare models row by row. Of the scores that need only one
    model, this one comes nearest to the vote (docs/unknown-rate.md). `rank_models` holds the vote itself.
    """
    given = labels(estimator, y)
    return noisy_mean(answer(estimator, X), given, sample_weight)


def rank_models(
    estimators: Sequence[Any] | Mapping[Any, Any],
    X: ArrayLike,
    y: ArrayLike,
    *,
    prefer: Prefer = "none",
    sample_weight: ArrayLike | None = None,
    seed: int = 0,
) -> Choice:
    """Rank fitted estimators by a vote of held-out rows ``X``, ``y``, pair by pair; see `choose`."""
    named = estimators if isinstance(estimators, Mapping) else dict(enumerate(estimators))
    if not named:
        raise InputError("estimators is empty, but a choice needs two.")
    if len({is_classifier(each) for each in named.values()}) > 1:
        raise InputError("estimators holds classifiers and regressors. Rank each kind by itself: their answers differ.")
    given = [labels(each, y) for each in named.values()]
    if any(not np.array_equal(given[0], each) for each in given):
        raise InputError("The estimators know different classes (classes_). Fit all of them to the same rows.")
    answers = [answer(each, X) for each in named.values()]
    if len({each.shape for each in answers}) > 1:
        shapes = ", ".join(f"{name}: {each.shape}" for name, each in zip(named, answers, strict=True))
        raise InputError(f"The estimators give answers of different shapes ({shapes}). Fit all of them to the same y.")
    predictions = np.stack(answers)
    return choose(predictions, given[0], prefer=prefer, names=list(named), weights=sample_weight, seed=seed)


def answer(estimator: Any, X: ArrayLike) -> NDArray[np.float64]:
    """Probabilities of classes, or predictions."""
    if not is_classifier(estimator):
        return np.asarray(estimator.predict(X), dtype=np.float64)
    if not hasattr(estimator, "predict_proba"):
        raise InputError(f"{type(estimator).__name__} has no predict_proba, but classes are judged by probabilities.")
    chances = np.asarray(estimator.predict_proba(X), dtype=np.float64)
    # An estimator that knows one class: its single column would be read as the probability of class 1.
    return np.hstack([chances, 1 - chances]) if len(estimator.classes_) == 1 else chances


def labels(estimator: Any, y: ArrayLike) -> NDArray:
    """The given targets; classes as their indices in ``classes_``."""
    given = np.asarray(y)
    if not is_classifier(estimator):
        return given.astype(np.float64)
    if given.ndim > 1 and given.shape[1] > 1:
        raise InputError(f"y has {given.shape[1]} columns, but classes of one target are judged. Score each by itself.")
    return class_numbers(given.ravel(), np.asarray(estimator.classes_))
