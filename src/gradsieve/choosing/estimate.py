"""How many targets are wrong, as a good model sees it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing.vote import Array, read_rows, read_weights

FAR = 4.0  # root mean squares of honest residuals, as if they were normal, beyond which a target counts as wrong
SMALL = 0.25  # interquartile ranges of an output: what lies nearer counts as right, however well the others are met
QUARTER = -0.6744897501960817  # of a normal distribution lies below
MOST_TURNS = 50
SURENESS = 6  # the power of a row's lead of the first class over the second: its say about labels


def estimate_rate(predictions: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The share of held-out rows whose target a good model finds wrong.

    ``predictions`` are one model's: outputs (N,) or (N, q), or probabilities (N, C) with integer classes (N,).
    Classes: how often the model disagrees with the label, the rows of which it is sure counting far more, since there
    it is hardly ever wrong itself. Real outputs: how many residuals are larger than four times what the smallest ones
    let expect of honest rows.
    """
    answers, given = read_rows(np.asarray(predictions)[None], targets)
    return weigh_suspects(*suspects(answers[0], given), read_weights(weights, len(given)))


def suspects(answers: Array, given: NDArray, small: float = SMALL) -> tuple[NDArray[np.bool_], Array]:
    """(N,) whether a target looks wrong, by more than is ``small``, and how much that says."""
    if given.ndim == 1:
        largest = np.sort(answers, axis=1)[:, ::-1]
        return answers.argmax(1) != given, (largest[:, 0] - largest[:, 1]) ** SURENESS
    residual = np.sqrt(((answers - given) ** 2).sum(1))
    outputs, limit, before = given.shape[1], np.inf, 0.0
    for _ in range(MOST_TURNS):  # the quarter of those within the limit moves, and the limit with it, until both stand
        limit, before = max(honest(residual[residual <= limit], outputs), small * outputs**0.5), limit
        if limit == before:
            break
    return residual > limit, np.ones(len(given))


def honest(residual: Array, outputs: int) -> float:
    """How far honest rows may lie from what is expected, by the nearest quarter of ``residual`` (N,).

    Wrong rows are rare there, even where they are many. Its bound, beside the root mean square of as many normal
    outputs, is a cube of a normal number, nearly (Wilson and Hilferty).
    """
    spread = 2 / (9 * outputs)
    bound = (1 - spread + QUARTER * spread**0.5) ** 1.5
    return FAR / bound * float(np.quantile(residual, 0.25))


def weigh_suspects(is_suspect: NDArray[np.bool_], says: Array, weights: Array) -> float:
    """The share of suspects among all that is said."""
    total = float(says @ weights)
    return float((is_suspect * says) @ weights) / total if total > 0 else 0.0
