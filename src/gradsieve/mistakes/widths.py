"""Widths: the typical residual of right rows, by prediction and missing inputs, in multiples of that of all rows.

The residuals of expensive houses are larger than those of cheap ones, and those of houses whose size is missing larger
than those of others. With one width for all, such rows would look wrong. So each output has a width for every tenth of
the rows in the order of their predictions, and one for every input that may be missing. No width is below 1: where a
network has memorized some rows, their neighbours would look wrong.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.mistakes.scatter import Array, parts, spread, typical_residual

OFF = 4.0  # an output is off by more robust standard deviations of right residuals, if it is the only output
STRATA = 10  # groups of rows with similar predictions
STRATUM_ROWS = 50  # rows that a stratum needs; fewer rows have fewer strata
PRIOR_ROWS = 20  # how many rows the presumed width counts as much as

Gaps = NDArray[np.bool_]  # (n, inputs) which inputs of a row are missing; (n, 0) if that is unknown


class Widths(NamedTuple):
    """The widths of q outputs."""

    edges: Array  # (q, strata - 1) the predictions at which the next stratum begins
    by_stratum: Array  # (q, strata)
    by_gap: Array  # (inputs, q) if an input is missing


def no_gaps(rows: int) -> Gaps:
    """The gaps if nothing is known of missing inputs."""
    return np.empty((rows, 0), dtype=bool)


def row_widths(widths: Widths, expected: Array, gaps: Gaps) -> Array:
    """(n, q) every row's width: the largest of its stratum's and those of its missing inputs."""
    outputs = zip(widths.edges, widths.by_stratum, expected.T, strict=True)
    found = np.stack([own[stratum_of(edges, values)] for edges, own, values in outputs], axis=1)
    for gap, width in zip(gaps.T, widths.by_gap, strict=True):
        found[gap] = np.maximum(found[gap], width)
    return found


def learn_widths(given: Array, expected: Array, gaps: Gaps, is_right: NDArray[np.bool_]) -> Widths:
    """The widths of right rows, shrunk towards presumed ones.

    A stratum is presumed to be as wide as all rows. If an input is missing, the network is presumed to know nothing, so
    that residuals are as large as the targets vary.
    """
    typical = typical_residual(given, expected, is_right)
    away, unknown = np.abs(given - expected) / typical, spread(given[is_right]) / typical
    strata = max(1, min(STRATA, len(given) // STRATUM_ROWS))
    edges = np.quantile(expected, np.arange(1, strata) / strata, axis=0).T.reshape(given.shape[1], strata - 1)
    by_stratum = np.ones((len(edges), strata))
    for output, own in enumerate(edges):
        place = np.where(is_right, stratum_of(own, expected[:, output]), -1)
        for stratum in range(strata):
            by_stratum[output, stratum] = shrunk_width(away[place == stratum, output : output + 1], np.ones(1))[0]
    by_gap = [shrunk_width(away[gap & is_right], unknown) for gap in gaps.T]
    return Widths(edges, by_stratum, np.array(by_gap).reshape(-1, len(edges)))


def stratum_of(edges: Array, values: Array) -> NDArray[np.intp]:
    """(n,) which stratum each value belongs to."""
    return np.searchsorted(edges, values, side="right")


def shrunk_width(away: Array, presumed: Array) -> Array:
    """(q,) the median of the rows' residuals (n, q), shrunk towards the presumed width if rows are few."""
    if not len(away):
        return np.maximum(presumed, 1)
    share = len(away) / (len(away) + PRIOR_ROWS)
    with np.errstate(divide="ignore"):  # logarithms, since a width is a factor
        found = share * np.log(np.median(away, axis=0)) + (1 - share) * np.log(presumed)
    return np.exp(np.maximum(found, 0))


def off_outputs(given: Array, expected: Array, gaps: Gaps, widths: Widths, scale: Array) -> NDArray[np.bool_]:
    """(N, q) whether an output's residual is larger than right ones, which have the standard deviation ``scale``.

    The limit grows with the number of outputs: the largest of many residuals is larger by chance.
    """
    limit = OFF * math.sqrt(1 + math.log(given.shape[1]) / 2)
    found = np.empty(given.shape, dtype=bool)
    for part in parts(len(given)):
        own = row_widths(widths, expected[part], gaps[part])
        found[part] = np.abs(given[part] - expected[part]) > limit * scale * own
    return found
