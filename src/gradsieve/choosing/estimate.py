"""The share of wrong targets, estimated from a good model's predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.choosing.reading import Array, read_rows, read_weights, to_numbers

FAR = 3.3  # a residual of more honest root mean squares is wrong; above 3, because honest tails are often long
FAR_ALONE = 4.0  # the same in `is_off`, where all rows share one root mean square
REACH = 3.5  # root mean squares: a normal residual hardly ever exceeds them, so farther rows are taken for wrong
SHELL = 2.0  # rows from REACH to this multiple of it tell how densely wrong rows lie
SMALL = 0.2  # interquartile ranges of an output: a smaller residual counts as right, however small the others are
QUARTER = -0.6744897501960817  # the lower quartile of a standard normal distribution
STRATA = 10  # groups of rows with similar predictions: in some of them honest residuals may be larger
STRATUM_ROWS = 100  # rows that a stratum needs; fewer rows have fewer strata
MOST_TURNS = 50  # iterations in `spread`
SURENESS = 6  # the weight of a label is the lead of the first class over the second, to this power


def estimate_rate(predictions: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Estimate the share of wrong targets among held-out rows, given a good model's predictions for them.

    ``predictions`` are those of one model: outputs (N,) or (N, q), or probabilities (N, C) with integer classes (N,).
    If these are all 0 or 1, ``predictions`` may also be the probability of class 1, (N,).

    For classes, it is how often the model disagrees with the label. Rows of which it is sure count far more, since
    there it is hardly ever wrong itself. For real-valued targets, it is the share of residuals larger than 3.3 times
    the root mean square of honest rows, which is inferred from the smallest residuals.
    """
    answers, given = read_rows(to_numbers(predictions, "predictions")[None], targets)
    return suspect_share(*suspects(answers[0], given), read_weights(weights, len(given)))


def suspects(answers: Array, given: NDArray) -> tuple[NDArray[np.bool_], Array]:
    """(N,) whether a target looks wrong, and the row's weight in the estimate."""
    if given.ndim == 1:
        largest = np.sort(answers, axis=1)[:, ::-1]
        return answers.argmax(1) != given, (largest[:, 0] - largest[:, 1]) ** SURENESS
    limit = max(FAR * honest_error(answers, given), tolerance(given))
    return distances(answers, given) > limit, np.ones(len(given))


def is_off(answers: Array, given: NDArray) -> NDArray[np.bool_]:
    """(N,) whether a real-valued target looks wrong, however small its residual."""
    residual = distances(answers, given)
    return residual > FAR_ALONE * spread(residual, given.shape[1])


def distances(answers: Array, given: NDArray) -> Array:
    """(N,) the distance of each target from its prediction."""
    return np.sqrt(((answers - given) ** 2).sum(1))


def tolerance(given: NDArray) -> float:
    """The distance up to which a target counts as right."""
    return SMALL * given.shape[1] ** 0.5


def honest_error(answers: Array, given: NDArray) -> float:
    """The root mean square of honest rows' residuals, though some rows are wrong.

    The residuals of expensive houses are larger than those of cheap ones, which alone would look like wrong targets.
    So the scale is estimated in strata of rows with similar predictions.
    """
    residual, outputs = distances(answers, given), given.shape[1]
    strata = max(1, min(STRATA, len(given) // STRATUM_ROWS))
    order = main_direction(answers).argsort(kind="stable")
    squares = [spread(residual[rows], outputs) ** 2 for rows in np.array_split(order, strata)]
    return float(np.mean(squares)) ** 0.5


def main_direction(answers: Array) -> Array:
    """(N,) predictions (N, q) along their first principal component."""
    if answers.shape[1] == 1:
        return answers[:, 0]
    centred = answers - answers.mean(0)
    line = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    return centred @ (line * np.sign(line[np.abs(line).argmax()]))


def spread(residual: Array, outputs: int) -> float:
    """The root mean square of honest residuals, from the smallest quarter of them.

    Wrong rows lie among the honest ones as well. They are assumed to be as dense there as in the shell just beyond,
    where hardly any row is honest, but not to be more than half of the rows within reach.
    """
    ascending = np.sort(residual)
    up_to = np.arange(1, len(ascending) + 1)
    honest, within, limit, before = up_to, len(ascending), np.inf, 0.0  # honest: how many of the nearest rows are
    for _ in range(MOST_TURNS):  # the number of wrong rows, the quartile and the reach depend on each other
        quarter = ascending[(honest >= honest[within - 1] / 4).argmax()]
        limit, before = REACH * float(quarter) / normal_quarter(outputs), limit
        if limit in (0, before):
            break
        within, farther = np.searchsorted(ascending, (limit, SHELL * limit), side="right")
        wrong = min((farther - within) / (SHELL**outputs - 1), within / 2)  # a ball's volume over that of its shell
        honest = up_to - wrong * (ascending / limit) ** outputs
    return limit / REACH


def normal_quarter(outputs: int) -> float:
    """The lower quartile of the norm of normal residuals, in root mean squares of that norm.

    By Wilson and Hilferty: the cube root of a chi-squared number is nearly normal.
    """
    skew = 2 / (9 * outputs)
    return (1 - skew + QUARTER * skew**0.5) ** 1.5


def suspect_share(found: NDArray, trust: Array, weights: Array) -> float:
    """The share of suspects, each row weighted by ``trust`` and ``weights``."""
    total = float(trust @ weights)
    return min(1.0, float((found * trust) @ weights) / total) if total > 0 else 0.0
