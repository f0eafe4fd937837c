"""How many targets are wrong, as a good model sees it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing.vote import Array, read_rows, read_weights

FAR = 5.0  # median residuals beyond which a target counts as wrong
SURENESS = 4  # the power of a row's lead of the first class over the second: its say about labels


def estimate_rate(predictions: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The share of held-out rows whose target a good model finds wrong.

    ``predictions`` are one model's: outputs (N,) or (N, q), or probabilities (N, C) with integer classes (N,).
    Classes: how often the model disagrees with the label, the rows of which it is sure counting far more, since there
    it is hardly ever wrong itself. Real outputs: how many residuals are larger than five times the median residual of
    the others.
    """
    answers, given = read_rows(np.asarray(predictions)[None], targets)
    return weigh_suspects(*suspects(answers[0], given), read_weights(weights, len(given)))


def suspects(answers: Array, given: NDArray) -> tuple[NDArray[np.bool_], Array]:
    """(N,) whether a target looks wrong, and how much that says."""
    if given.ndim == 1:
        largest = np.sort(answers, axis=1)[:, ::-1]
        return answers.argmax(1) != given, (largest[:, 0] - largest[:, 1]) ** SURENESS
    residual = np.sqrt(((answers - given) ** 2).sum(1))
    # From the smallest quarter, where few are wrong even if most are; of normal residuals its bound is half the median.
    limit = 2 * FAR * float(np.quantile(residual, 0.25))
    for _ in range(20):  # the median of those within the limit moves, and the limit with it, until both stand still
        limit, before = FAR * float(np.median(residual[residual <= limit])), limit
        if limit == before:
            break
    return residual > limit, np.ones(len(given))


def weigh_suspects(is_suspect: NDArray[np.bool_], says: Array, weights: Array) -> float:
    """The share of suspects among all that is said."""
    total = float(says @ weights)
    return float((is_suspect * says) @ weights) / total if total > 0 else 0.0
