"""Warnings to readers of an audit that its flags may be unreliable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

FEW_ROWS = 100  # below, there is a warning
MOST_FLAGGED = 0.5  # of the rows; above, right rows are no longer the majority that an audit needs
OFTEN = 2.0  # there is a warning if flagged rows lack an input this many times as often as all rows


def cautions(flagged: NDArray[np.bool_], gaps: Mapping[str, NDArray[np.bool_]]) -> Iterator[str]:
    """Warnings about the flags (N,) of rows, some of whose inputs may be missing."""
    rows, count = len(flagged), int(flagged.sum())
    if rows < FEW_ROWS:
        yield f"{rows} rows are few to tell right from wrong by: take the flags as hints."
    if is_majority(flagged):
        yield (
            f"{count} of {rows} rows are flagged, but an audit needs a majority of right rows. Look at "
            "the targets before you trust the flags."
        )
    if not gaps or not count:
        return
    has_gap = np.logical_or.reduce(list(gaps.values()))
    if has_gap[flagged].mean() > OFTEN * has_gap.mean():
        yield (
            f"{int(has_gap[flagged].sum())} of {count} flagged rows lack an input ({', '.join(gaps)}), but "
            f"only {has_gap.mean():.0%} of all rows: the network's predictions for them may be too uncertain."
        )


def is_majority(flagged: NDArray[np.bool_]) -> bool:
    """Whether more rows are flagged than an audit can find: more than half."""
    return bool(flagged.sum() > MOST_FLAGGED * len(flagged))
