"""What happened to a wrong target: the likelihoods of kinds of error, compared with that of the row being right.

The residuals of right rows are normal. They have a covariance, because outputs are missed together; a width that
depends on the row (``widths``); and one, two or four times that width, because rows that were dropped are missed by
more than those that the network was trained on.
A wrong row would be right with its sign turned, divided by one factor, or in another order; or it lies anywhere among
the targets. The share of each of these and the covariance are learned from the rows by expectation maximization.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.mistakes.scatter import FLOOR, Array, parts, residual_scale, root_mean_square, sample, spread
from gradsieve.mistakes.widths import Gaps, Widths, learn_widths, no_gaps, row_widths

KINDS = ("sign flipped", "scaled", "swapped", "random")
STRETCHES = np.array([1.0, 2.0, 4.0])  # multiples of a right row's width,
STRETCH_SHARES = np.array([0.8, 0.15, 0.05])  # and the share of right rows that have each
LEAST_FACTOR = 1.5  # a fitted factor nearer to 1 is no scaling
LEAST_MOVE = 4.0  # standard deviations of right rows: a factor that moves a row by less explains nothing
POWERS_OF_TEN = (10.0, 100.0, 1000.0, 0.1, 0.01, 0.001)  # slips of units: a single output is scaled by one of these
ANYWHERE = 3.0  # the scale of random targets around their median, in standard deviations of all targets
FAR_SHARE = 0.1  # the farthest rows: among them the common order of swapped rows is searched
START = np.array([0.9, 0.025, 0.025, 0.025, 0.025])  # shares of right rows and of each kind before the first round
LEAST_SHARE = 1e-3  # of a kind, so that none is excluded for good
ROUNDS = 10  # little changes after five
FARTHEST = 1e6  # standard deviations: larger deviations count as this, so that no square overflows
HUGE = 1e12  # typical targets: larger numbers count as this, for the same reason


class Kinds(NamedTuple):
    """The learned distributions of right and wrong rows of q outputs."""

    centre: Array  # (q,) the median of the targets
    spread: Array  # (q,) their robust standard deviation
    whitener: Array  # (q, q) makes right rows' residuals, divided by their widths, independent and of variance 1
    order: NDArray[np.intp]  # (q,) the place of each output's number in swapped rows, if they share an order
    shares: Array  # (5,) of right rows, and of KINDS
    widths: Widths  # of right rows
    rows: int  # how many all this was learned from


class Diagnosis(NamedTuple):
    """How likely each row is wrong, and of which kind."""

    distance: NDArray[np.float32]  # (n,) from the prediction, in standard deviations of right rows
    odds: NDArray[np.float32]  # (n,) the natural logarithm of the odds that the row is wrong
    number: NDArray[np.int8]  # (n,) the likeliest of KINDS if the row is wrong
    widths: Widths

    @property
    def kind(self) -> NDArray[np.object_]:
        """(n,) the name of that kind."""
        return np.array(KINDS, dtype=object)[self.number]


def diagnose(
    given: Array, expected: Array, gaps: Gaps | None = None, rows: NDArray[np.intp] | None = None
) -> Diagnosis:
    """Diagnose all rows, or ``rows`` of them, by their ``given`` and ``expected`` targets (N, q)."""
    gaps = no_gaps(len(given)) if gaps is None else gaps
    # A common unit for all outputs changes no kind, and keeps squares from overflowing.
    unit = float(np.median(np.abs(sample(given)), axis=0).max()) or 1.0
    kinds = learn_kinds(in_unit(sample(given), unit), in_unit(sample(expected), unit), sample(gaps))
    if rows is not None:
        given, expected, gaps = given[rows], expected[rows], gaps[rows]
    count = len(given)
    found = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count, np.int8)
    for part in parts(count):
        own = diagnose_rows(kinds, in_unit(given[part], unit), in_unit(expected[part], unit), gaps[part])
        for column, values in zip(found, own, strict=True):
            column[part] = values
    return Diagnosis(*found, kinds.widths._replace(edges=kinds.widths.edges * unit))


def single_output_kinds(
    given: Array,
    expected: Array,
    gaps: Gaps,
    number: NDArray[np.int8],
    off: NDArray[np.bool_],
    flagged: NDArray[np.bool_],
) -> NDArray[np.int8]:
    """(N,) ``number``, but flagged "random" rows with a single output off get the kind that it has on its own."""
    if given.shape[1] == 1:
        return number
    number = number.copy()
    is_alone = flagged & (number == KINDS.index("random")) & (off.sum(1) == 1)
    for output in range(given.shape[1]):
        rows = np.flatnonzero(is_alone & off[:, output])
        if len(rows):
            alone = slice(output, output + 1)
            number[rows] = diagnose(given[:, alone], expected[:, alone], gaps, rows).number
    return number


def in_unit(values: Array, unit: float) -> Array:
    with np.errstate(over="ignore"):
        return np.clip(values / unit, -HUGE, HUGE)


def diagnose_rows(kinds: Kinds, given: Array, expected: Array, gaps: Gaps) -> tuple[Array, Array, NDArray[np.intp]]:
    """The distance, odds and kind of each row, as `Diagnosis` has them."""
    width = row_widths(kinds.widths, expected, gaps)
    weighed = log_weights(kinds, given, expected, width)
    odds = np.logaddexp.reduce(weighed[1:]) - weighed[0]
    return root_mean_square(whitened(kinds, (given - expected) / width)), odds, weighed[1:].argmax(0)


def learn_kinds(given: Array, expected: Array, gaps: Gaps) -> Kinds:
    """Learn the widths and covariance of right rows, the order of swapped ones, and all shares, in turn."""
    residuals, is_right = given - expected, np.ones(len(given), dtype=bool)
    scale = residual_scale(given, expected, is_right)
    centre, order = np.median(given, axis=0), np.arange(len(scale))
    widths = learn_widths(given, expected, gaps, is_right)
    kinds = Kinds(centre, spread(given), np.diag(1 / scale), order, START, widths, len(given))
    for _ in range(ROUNDS):
        width = row_widths(kinds.widths, expected, gaps)
        kinds = kinds._replace(order=common_order(kinds, given, expected, width))
        weighed = log_weights(kinds, given, expected, width)
        before, is_right = is_right, weighed[0] >= np.logaddexp.reduce(weighed[1:])
        if not is_right.any() or (before == is_right).all():
            break
        shares = np.exp(weighed - np.logaddexp.reduce(weighed)).mean(1)
        shares = np.maximum(shares, LEAST_SHARE)
        widths = learn_widths(given, expected, gaps, is_right)
        width = row_widths(widths, expected, gaps)
        kinds = kinds._replace(
            spread=spread(given[is_right]),
            whitener=whitener(kinds, (residuals / width)[is_right]),
            shares=shares / shares.sum(),
            widths=widths,
        )
    return kinds


def log_weights(kinds: Kinds, given: Array, expected: Array, width: Array) -> Array:
    """(5, n) the log of each explanation's share times its likelihood: right, then KINDS.

    ``width`` (n, q): the scale of the rows' residuals if they are right.
    """
    outputs = given.shape[1]
    found = [
        log_right(kinds, given - expected, width),
        log_right(kinds, -given - expected, width),
        log_scaled(kinds, given, expected, width),
        log_swapped(kinds, given, expected, width) if outputs > 1 else np.full(len(given), -np.inf),
        log_anywhere(kinds, given),
    ]
    return np.stack(found) + np.log(kinds.shares)[:, None]


def log_right(kinds: Kinds, residuals: Array, width: Array) -> Array:
    """(n,) log likelihood of residuals (n, q) of right rows."""
    power = (whitened(kinds, residuals / width) ** 2).sum(1)
    log_volume = np.log(np.abs(np.diag(kinds.whitener))).sum() - residuals.shape[1] / 2 * math.log(2 * math.pi)
    return np.logaddexp.reduce(log_stretched(power, residuals.shape[1])) + log_volume - np.log(width).sum(1)


def log_stretched(power: Array, outputs: int) -> Array:
    """(STRETCHES, n) log likelihoods, up to a constant, by the sum of squares ``power`` of whitened residuals."""
    stretch = STRETCHES[:, None]
    return np.log(STRETCH_SHARES)[:, None] - outputs * np.log(stretch) - power / (2 * stretch**2)


def log_scaled(kinds: Kinds, given: Array, expected: Array, width: Array) -> Array:
    """(n,) log likelihood of rows multiplied by the factor that fits best; of a single output, by a power of ten."""
    outputs = given.shape[1]
    if outputs == 1:
        choices = [log_divided(kinds, given, expected, width, np.full(len(given), ten)) for ten in POWERS_OF_TEN]
        return np.max(choices, axis=0) - math.log(len(POWERS_OF_TEN))
    ours, theirs = whitened(kinds, given / width), whitened(kinds, expected / width)
    power = np.maximum((theirs**2).sum(1), np.finfo(np.float64).tiny)
    factor = np.clip((ours * theirs).sum(1) / power, 1e-3, 1e3)
    found = log_divided(kinds, given, expected, width, factor)
    # A fitted factor costs half the log of the number of rows, as in the Bayesian information criterion.
    return np.where(np.abs(np.log(factor)) > math.log(LEAST_FACTOR), found - math.log(kinds.rows) / 2, -np.inf)


def log_divided(kinds: Kinds, given: Array, expected: Array, width: Array, factor: Array) -> Array:
    """(n,) log likelihood of rows that are right once divided by ``factor`` (n,), if that moves them clearly.

    Otherwise right zeros, of which counts and sums of money have many, would always look scaled: zero is zero at any
    scale, and for the factor 0.001 the density around zero is a thousand times that of right rows.
    """
    divided = given / factor[:, None]
    found = log_right(kinds, divided - expected, width) - given.shape[1] * np.log(factor)
    moved = np.linalg.norm(whitened(kinds, (divided - given) / width), axis=1)
    return np.where(moved > LEAST_MOVE, found, -np.inf)


def log_swapped(kinds: Kinds, given: Array, expected: Array, width: Array) -> Array:
    """(n,) log likelihood of the numbers in the order that swapped rows share, or in the one that fits the row best.

    The latter is one of very many and pays for that. It is found by sorting: the smallest number belongs to the
    smallest prediction, and so on.
    """
    places = np.argsort(expected, axis=1, kind="stable")
    own = np.empty_like(given)
    np.put_along_axis(own, places, np.sort(given, axis=1), 1)
    found = log_right(kinds, own - expected, width) - math.lgamma(given.shape[1] + 1)
    if (kinds.order == np.arange(len(kinds.order))).all():
        return found
    return np.maximum(found, log_right(kinds, given[:, kinds.order] - expected, width))


def log_anywhere(kinds: Kinds, given: Array) -> Array:
    """(n,) log likelihood of a row that lies anywhere: a Cauchy distribution around the targets' median."""
    outputs, width = given.shape[1], ANYWHERE * kinds.spread
    power = (np.clip((given - kinds.centre) / width, -FARTHEST, FARTHEST) ** 2).sum(1)
    constant = math.lgamma((1 + outputs) / 2) - math.lgamma(0.5) - outputs / 2 * math.log(math.pi)
    return constant - np.log(width).sum() - (1 + outputs) / 2 * np.log1p(power)


def whitened(kinds: Kinds, residuals: Array) -> Array:
    """Residuals (n, q), divided by their widths, made independent and of variance 1 for right rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = residuals @ kinds.whitener.T
    return np.clip(np.nan_to_num(found, nan=FARTHEST), -FARTHEST, FARTHEST)


def whitener(kinds: Kinds, residuals: Array) -> Array:
    """(q, q) the inverse root of the covariance of right rows' residuals, divided by widths and expected stretches."""
    rows, outputs = residuals.shape
    fits = log_stretched((whitened(kinds, residuals) ** 2).sum(1), outputs)
    share = np.exp(fits - np.logaddexp.reduce(fits))
    weight = (share / STRETCHES[:, None] ** 2).sum(0)
    covariance = (residuals * weight[:, None]).T @ residuals / rows
    # Shrunk towards no correlation, with a floor below each variance, so that the inverse always exists.
    shrink = min(1.0, 0.01 + outputs / rows)
    variance = np.maximum(np.diag(covariance), (FLOOR * kinds.spread) ** 2)
    shrunk = (1 - shrink) * covariance
    np.fill_diagonal(shrunk, variance)
    return np.linalg.inv(np.linalg.cholesky(shrunk))


def common_order(kinds: Kinds, given: Array, expected: Array, width: Array) -> NDArray[np.intp]:
    """(q,) the place of each output's number in the farthest rows, if they share an order other than the usual.

    Greedy: from the usual order, the two places whose exchange brings the given numbers nearest to the expected ones
    are exchanged, until no exchange helps.
    """
    distance = root_mean_square(whitened(kinds, (given - expected) / width))
    far = distance >= np.quantile(distance, 1 - FAR_SHARE)
    ours, theirs = given[far], expected[far]
    scale = residual_scale(given, expected, ~far)
    squares = (ours**2).mean(0)[:, None] - 2 * ours.T @ theirs / len(ours) + (theirs**2).mean(0)
    cost = squares / scale**2  # (given, expected): of taking a given number for an output's
    order, all_places = np.arange(len(scale)), np.arange(len(scale))
    for _ in range(len(order) ** 2):
        now = cost[order, all_places]
        crossed = cost[order]  # (place, output): the cost of giving the number that stands at a place to an output
        saved = now[:, None] + now - crossed - crossed.T
        first, second = np.unravel_index(saved.argmax(), saved.shape)
        if saved[first, second] <= 1e-9 * max(1.0, float(now.sum())):
            break
        order[[first, second]] = order[[second, first]]
    return order
