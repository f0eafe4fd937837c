"""What happened to a wrong target: kinds of error, each weighed as an explanation against the row being right.

A right row lies around what the network expects: normally, with a covariance, since who misses one output misses
others with it, at a width that depends on the row (``widths``), and at once, twice or four times that, since rows that
were dropped lie farther off than those it was trained on.
A wrong row would be right with its sign turned, divided by one factor, or in another order; or it lies anywhere among
the targets. How frequent each explanation is, is learnt from the rows, in turn with the covariance (EM).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.mistakes.scatter import FLOOR, Array, parts, residual_scale, size, some, spread
from gradsieve.mistakes.widths import Gaps, Widths, learn_widths, no_gaps, row_widths

KINDS = ("sign flipped", "scaled", "swapped", "random")
STRETCHES = np.array([1.0, 2.0, 4.0])  # of the width of right rows
STRETCH_SHARES = np.array([0.8, 0.15, 0.05])
PLAIN_FACTOR = 1.5  # a row that is nearer to its prediction than by this factor is not plainly scaled
PLAIN_MOVE = 4.0  # standard deviations of right rows: a factor that moves a row by less says nothing that these do not
POWERS_OF_TEN = (10.0, 100.0, 1000.0, 0.1, 0.01, 0.001)  # a slip of units: all that one number alone can show
ANYWHERE = 3.0  # standard deviations of the targets: how far a random one may lie from their middle
FAR_SHARE = 0.1  # of the rows, the farthest: among them the order of swapped numbers is looked for
START = np.array([0.9, 0.025, 0.025, 0.025, 0.025])  # shares of right rows and of each kind, before any row is seen
LEAST_SHARE = 1e-3  # so that no kind is excluded for good
ROUNDS = 10  # in practice little moves after five
BEYOND = 1e6  # standard deviations: what lies farther is equally far
HUGE = 1e12  # times as large as targets are: likewise


class Kinds(NamedTuple):
    """What is known of right and wrong rows of q outputs."""

    centre: Array  # (q,) of the targets
    spread: Array  # (q,)
    whitener: Array  # (q, q) from residuals of right rows, over their widths, to independent ones of deviation 1
    order: NDArray[np.intp]  # (q,) where swapped rows have each output's number, as most of them agree
    shares: Array  # (5,) of right rows, and of KINDS
    widths: Widths  # of right rows, by their circumstances
    rows: int  # that all this was learnt from


class Explained(NamedTuple):
    """What the kinds say of rows."""

    distance: NDArray[np.float32]  # (n,) from what is expected, in standard deviations of right rows
    odds: NDArray[np.float32]  # (n,) natural logarithm of the odds that the row is wrong
    number: NDArray[np.int8]  # (n,) of the likeliest of KINDS, if it is
    widths: Widths

    @property
    def kind(self) -> NDArray[np.object_]:
        """(n,) its name."""
        return np.array(KINDS, dtype=object)[self.number]


def explain(given: Array, expected: Array, gaps: Gaps | None = None, rows: NDArray[np.intp] | None = None) -> Explained:
    """What happened to rows with ``given`` targets (N, q) where others were ``expected``, or to ``rows`` of them."""
    gaps = no_gaps(len(given)) if gaps is None else gaps
    # One unit for all outputs changes no kind, and squares of what is measured in it stay within bounds.
    unit = float(np.median(np.abs(some(given)), axis=0).max()) or 1.0
    kinds = learn_kinds(in_unit(some(given), unit), in_unit(some(expected), unit), some(gaps))
    if rows is not None:
        given, expected, gaps = given[rows], expected[rows], gaps[rows]
    count = len(given)
    found = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count, np.int8)
    for part in parts(count):
        own = explain_rows(kinds, in_unit(given[part], unit), in_unit(expected[part], unit), gaps[part])
        for column, values in zip(found, own, strict=True):
            column[part] = values
    return Explained(*found, kinds.widths._replace(edges=kinds.widths.edges * unit))


def named_alone(
    given: Array,
    expected: Array,
    gaps: Gaps,
    number: NDArray[np.int8],
    off: NDArray[np.bool_],
    flagged: NDArray[np.bool_],
) -> NDArray[np.int8]:
    """(N,) the kinds of flagged rows, and of those with one output off, that no kind of all outputs explains, what
    happened to that output."""
    if given.shape[1] == 1:
        return number
    number = number.copy()
    is_alone = flagged & (number == KINDS.index("random")) & (off.sum(1) == 1)
    for output in range(given.shape[1]):
        rows = np.flatnonzero(is_alone & off[:, output])
        if len(rows):
            alone = slice(output, output + 1)
            number[rows] = explain(given[:, alone], expected[:, alone], gaps, rows).number
    return number


def in_unit(values: Array, unit: float) -> Array:
    with np.errstate(over="ignore"):
        return np.clip(values / unit, -HUGE, HUGE)


def explain_rows(kinds: Kinds, given: Array, expected: Array, gaps: Gaps) -> tuple[Array, Array, NDArray[np.intp]]:
    """(n,) the distance, the odds and the number of the likeliest kind."""
    width = row_widths(kinds.widths, expected, gaps)
    weighed = log_weights(kinds, given, expected, width)
    odds = np.logaddexp.reduce(weighed[1:]) - weighed[0]
    return size(whitened(kinds, (given - expected) / width)), odds, weighed[1:].argmax(0)


def learn_kinds(given: Array, expected: Array, gaps: Gaps) -> Kinds:
    """The widths and covariance of right rows, the order of swapped ones, and the share of each, found in turn."""
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
    """(5, n) the logarithm of each explanation's share times its likelihood: right, then KINDS.

    ``width`` (n, q): how wide the rows would lie if they were right.
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
    """(STRETCHES, n) how well each suits rows whose whitened residuals have ``power``, the sum of their squares."""
    stretch = STRETCHES[:, None]
    return np.log(STRETCH_SHARES)[:, None] - outputs * np.log(stretch) - power / (2 * stretch**2)


def log_scaled(kinds: Kinds, given: Array, expected: Array, width: Array) -> Array:
    """All numbers multiplied by one factor, the one that fits best; a single number by a power of ten."""
    outputs = given.shape[1]
    if outputs == 1:
        choices = [log_divided(kinds, given, expected, width, np.full(len(given), ten)) for ten in POWERS_OF_TEN]
        return np.max(choices, axis=0) - math.log(len(POWERS_OF_TEN))
    ours, theirs = whitened(kinds, given / width), whitened(kinds, expected / width)
    power = np.maximum((theirs**2).sum(1), np.finfo(np.float64).tiny)
    factor = np.clip((ours * theirs).sum(1) / power, 1e-3, 1e3)
    found = log_divided(kinds, given, expected, width, factor)
    # A factor that was fitted to the row explains less than one that was known: half a logarithm of the rows (BIC).
    return np.where(np.abs(np.log(factor)) > math.log(PLAIN_FACTOR), found - math.log(kinds.rows) / 2, -np.inf)


def log_divided(kinds: Kinds, given: Array, expected: Array, width: Array, factor: Array) -> Array:
    """(n,) log likelihood of rows that are right once divided by ``factor`` (n,), where that moves them plainly.

    Zero is zero at any scale. A thousandth of something small is expected so near to it that no right row could be as
    likely, and a right zero, of which counts and sums of money have many, would always be one of those.
    """
    divided = given / factor[:, None]
    found = log_right(kinds, divided - expected, width) - given.shape[1] * np.log(factor)
    moved = np.linalg.norm(whitened(kinds, (divided - given) / width), axis=1)
    return np.where(moved > PLAIN_MOVE, found, -np.inf)


def log_swapped(kinds: Kinds, given: Array, expected: Array, width: Array) -> Array:
    """The same numbers in the order that swapped rows share, or in one of its own: one of very many, so less likely.

    The order that fits a row best matches the smallest with the smallest, and so on: it is found by sorting.
    """
    places = np.argsort(expected, axis=1, kind="stable")
    own = np.empty_like(given)
    np.put_along_axis(own, places, np.sort(given, axis=1), 1)
    found = log_right(kinds, own - expected, width) - math.lgamma(given.shape[1] + 1)
    if (kinds.order == np.arange(len(kinds.order))).all():
        return found
    return np.maximum(found, log_right(kinds, given[:, kinds.order] - expected, width))


def log_anywhere(kinds: Kinds, given: Array) -> Array:
    """Anywhere among the targets and beyond (Cauchy), each output by itself."""
    outputs, width = given.shape[1], ANYWHERE * kinds.spread
    power = (np.clip((given - kinds.centre) / width, -BEYOND, BEYOND) ** 2).sum(1)
    constant = math.lgamma((1 + outputs) / 2) - math.lgamma(0.5) - outputs / 2 * math.log(math.pi)
    return constant - np.log(width).sum() - (1 + outputs) / 2 * np.log1p(power)


def whitened(kinds: Kinds, residuals: Array) -> Array:
    """Residuals (n, q) of right rows, over their widths, as independent numbers of standard deviation 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = residuals @ kinds.whitener.T
    return np.clip(np.nan_to_num(found, nan=BEYOND), -BEYOND, BEYOND)


def whitener(kinds: Kinds, residuals: Array) -> Array:
    """(q, q) the inverse root of the covariance of right rows' residuals over their widths, each row weighed down by
    its stretch."""
    rows, outputs = residuals.shape
    fits = log_stretched((whitened(kinds, residuals) ** 2).sum(1), outputs)
    share = np.exp(fits - np.logaddexp.reduce(fits))
    weight = (share / STRETCHES[:, None] ** 2).sum(0)
    covariance = (residuals * weight[:, None]).T @ residuals / rows
    # Shrunk towards no correlation, and no output narrower than a share of its spread: there is always an inverse.
    shrink = min(1.0, 0.01 + outputs / rows)
    variance = np.maximum(np.diag(covariance), (FLOOR * kinds.spread) ** 2)
    shrunk = (1 - shrink) * covariance
    np.fill_diagonal(shrunk, variance)
    return np.linalg.inv(np.linalg.cholesky(shrunk))


def common_order(kinds: Kinds, given: Array, expected: Array, width: Array) -> NDArray[np.intp]:
    """(q,) where each output's number stands in the rows that lie farthest off, if they share one order.

    From the order as it is, the two whose exchange brings given numbers nearest to expected ones change places, until
    no exchange does.
    """
    distance = size(whitened(kinds, (given - expected) / width))
    far = distance >= np.quantile(distance, 1 - FAR_SHARE)
    ours, theirs = given[far], expected[far]
    scale = residual_scale(given, expected, ~far)
    squares = (ours**2).mean(0)[:, None] - 2 * ours.T @ theirs / len(ours) + (theirs**2).mean(0)
    cost = squares / scale**2  # (given, expected)
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
