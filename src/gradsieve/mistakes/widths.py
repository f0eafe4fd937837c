"""How wide right rows lie around what is expected of them, as multiples of how wide all of them do.

Dear houses are missed by more than cheap ones, and a house whose size is missing by more than one whose size is known.
With one width for all, such rows would look wrong. So each output has a width for every tenth of the rows by what is
expected of them, and one for every input that may be missing. None is narrower than that of all rows: a network that
knows some rows by heart would find their neighbours wrong.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.mistakes.scatter import Array, parts, spread, typical_residual

OFF = 4.0  # robust standard deviations of an output's residual, where there is one output
STRATA = 10  # of rows of which similar things are expected
STRATUM_ROWS = 50  # at least, unless there is one alone
PRESUMED_ROWS = 20  # what is presumed of rows before they are seen counts as much as so many of them

Gaps = NDArray[np.bool_]  # (n, inputs) which inputs of a row are missing; (n, 0) where that is unknown


class Widths(NamedTuple):
    """Of q outputs."""

    edges: Array  # (q, strata - 1) between strata of what is expected
    by_stratum: Array  # (q, strata)
    by_gap: Array  # (inputs, q) where an input is missing


def no_gaps(rows: int) -> Gaps:
    """Where nothing is known of missing inputs."""
    return np.empty((rows, 0), dtype=bool)


def row_widths(widths: Widths, expected: Array, gaps: Gaps) -> Array:
    """(n, q) the width of every row: of the widest of its circumstances."""
    outputs = zip(widths.edges, widths.by_stratum, expected.T, strict=True)
    found = np.stack([own[stratum_of(edges, values)] for edges, own, values in outputs], axis=1)
    for gap, width in zip(gaps.T, widths.by_gap, strict=True):
        found[gap] = np.maximum(found[gap], width)
    return found


def learn_widths(given: Array, expected: Array, gaps: Gaps, is_right: NDArray[np.bool_]) -> Widths:
    """The widths that right rows have.

    Of a stratum it is presumed that it is as wide as all, of a gap that the network then knows nothing, so that right
    rows lie as far off as the targets vary.
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
    """(q,) by how far rows (n, q) lie off, n of which may be few, and by what was presumed of them."""
    if not len(away):
        return np.maximum(presumed, 1)
    share = len(away) / (len(away) + PRESUMED_ROWS)
    with np.errstate(divide="ignore"):  # of logarithms: a width is a factor
        found = share * np.log(np.median(away, axis=0)) + (1 - share) * np.log(presumed)
    return np.exp(np.maximum(found, 0))


def off_outputs(given: Array, expected: Array, gaps: Gaps, widths: Widths, scale: Array) -> NDArray[np.bool_]:
    """(N, q) whether an output is farther from the expected one than right rows are, whose residuals have ``scale``.

    More standard deviations are allowed to one of many outputs: the largest of them is larger by chance.
    """
    limit = OFF * math.sqrt(1 + math.log(given.shape[1]) / 2)
    found = np.empty(given.shape, dtype=bool)
    for part in parts(len(given)):
        own = row_widths(widths, expected[part], gaps[part])
        found[part] = np.abs(given[part] - expected[part]) > limit * scale * own
    return found
