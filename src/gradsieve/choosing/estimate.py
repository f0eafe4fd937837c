"""How many targets are wrong, as a good model sees it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing.reading import Array, read_rows, read_weights, to_numbers

FAR = 3.3  # root mean squares of honest residuals, beyond which a target counts as wrong; their tails are often long
SURELY = 4.0  # of them, beyond which one is off even by the nearest rows of all
REACH = 3.5  # of them, as if they were normal: hardly an honest row lies farther off,
BEYOND = 2.0  # so that rows up to so many times as far are wrong, and say how densely wrong rows lie
SMALL = 0.2  # interquartile ranges of an output: what lies nearer counts as right, however well the others are met
QUARTER = -0.6744897501960817  # of a normal distribution lies below
STRATA = 10  # of rows of which similar things are expected; honest residuals may be larger in one than in another
STRATUM_ROWS = 100  # at least, unless there is one alone
MOST_TURNS = 50
SURENESS = 6  # the power of a row's lead of the first class over the second: its say about labels


def estimate_rate(predictions: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Estimate the share of wrong targets among held-out rows, given a good model's predictions for them.

    ``predictions`` are those of one model: outputs (N,) or (N, q), or probabilities (N, C) with integer classes (N,).
    If these are all 0 or 1, ``predictions`` may also be the probability of class 1, (N,).

    For classes, it is how often the model disagrees with the label. Rows of which it is sure count far more, since
    there it is hardly ever wrong itself. For real-valued targets, it is the share of residuals more than 3.3 times as
    large as the smallest residuals lead us to expect of honest rows.
    """
    answers, given = read_rows(to_numbers(predictions, "predictions")[None], targets)
    return weigh_suspects(*suspects(answers[0], given), read_weights(weights, len(given)))


def suspects(answers: Array, given: NDArray) -> tuple[NDArray[np.bool_], Array]:
    """(N,) whether a target looks wrong, and how much that says."""
    if given.ndim == 1:
        largest = np.sort(answers, axis=1)[:, ::-1]
        return answers.argmax(1) != given, (largest[:, 0] - largest[:, 1]) ** SURENESS
    limit = max(FAR * honest_error(answers, given), tolerance(given))
    return distances(answers, given) > limit, np.ones(len(given))


def is_off(answers: Array, given: NDArray) -> NDArray[np.bool_]:
    """(N,) whether an amount looks wrong, however little it is, by the nearest rows of all."""
    residual = distances(answers, given)
    return residual > SURELY * spread(residual, given.shape[1])


def distances(answers: Array, given: NDArray) -> Array:
    """(N,) how far each target lies from what is expected."""
    return np.sqrt(((answers - given) ** 2).sum(1))


def tolerance(given: NDArray) -> float:
    """What lies as near counts as right."""
    return SMALL * given.shape[1] ** 0.5


def honest_error(answers: Array, given: NDArray) -> float:
    """The root mean square of honest rows' residuals, some of the rows being wrong.

    Dear houses are missed by more than cheap ones. That would look like wrong targets, so rows of which similar things
    are expected are looked at together.
    """
    residual, outputs = distances(answers, given), given.shape[1]
    strata = max(1, min(STRATA, len(given) // STRATUM_ROWS))
    order = main_direction(answers).argsort(kind="stable")
    squares = [spread(residual[rows], outputs) ** 2 for rows in np.array_split(order, strata)]
    return float(np.mean(squares)) ** 0.5


def main_direction(answers: Array) -> Array:
    """(N,) predictions (N, q) along the line on which they differ most."""
    if answers.shape[1] == 1:
        return answers[:, 0]
    centred = answers - answers.mean(0)
    line = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    return centred @ (line * np.sign(line[np.abs(line).argmax()]))


def spread(residual: Array, outputs: int) -> float:
    """The root mean square of honest residuals, by the nearest quarter of honest rows.

    Wrong rows lie among the honest ones as well: as densely, it is presumed, as where hardly an honest one is left, but
    most rows near by are honest.
    """
    ascending = np.sort(residual)
    up_to = np.arange(1, len(ascending) + 1)
    honest, within, limit, before = up_to, len(ascending), np.inf, 0.0
    for _ in range(MOST_TURNS):  # the nearest quarter moves, and how far honest rows reach with it, until both stand
        quarter = ascending[(honest >= honest[within - 1] / 4).argmax()]
        limit, before = REACH * float(quarter) / normal_quarter(outputs), limit
        if limit in (0, before):
            break
        within, farther = np.searchsorted(ascending, (limit, BEYOND * limit), side="right")
        wrong = min((farther - within) / (BEYOND**outputs - 1), within / 2)  # in the ball that honest rows reach
        honest = up_to - wrong * (ascending / limit) ** outputs
    return limit / REACH


def normal_quarter(outputs: int) -> float:
    """Where the nearest quarter of rows ends whose outputs are normal, in root mean squares of their residuals.

    The norm of as many normal outputs is a cube of a normal number, nearly (Wilson and Hilferty).
    """
    skew = 2 / (9 * outputs)
    return (1 - skew + QUARTER * skew**0.5) ** 1.5


def weigh_suspects(is_suspect: NDArray, says: Array, weights: Array) -> float:
    """The share of suspects among all that is said."""
    total = float(says @ weights)
    return float((is_suspect * says) @ weights) / total if total > 0 else 0.0
