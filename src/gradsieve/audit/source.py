"""Whether a file is still the one that was audited, judged by its targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradsieve.arguments import argument
from gradsieve.data import Task
from gradsieve.errors import InputError
from gradsieve.tables.frame import Frame, numbers, texts
from gradsieve.tables.reading import read_frame
from gradsieve.tables.targets import filled_rows


def require_audited(source: Path, targets: Sequence[str], task: Task, rows: NDArray, given: NDArray) -> None:
    """Refuse a file whose ``rows`` (N,), numbered from 1, have other targets than those ``given`` (N, q)."""
    frame = read_frame(source)
    targets = frame.find(argument("targets"), targets)
    differs = changed(frame, targets, task, rows, given)
    if differs.any() and task == "classification":  # the audit may have taken the classes as they are written
        as_written = read_frame(source, as_text=targets)
        frame, differs = min(
            (frame, differs),
            (as_written, changed(as_written, targets, task, rows, given, as_written=True)),
            key=lambda reading: reading[1].sum(),
        )
    if differs.any():
        row, column = np.argwhere(differs)[0]
        raise InputError(
            f"{frame.place(row)}: the target {targets[column]} is not what was audited: the file has changed since. "
            "Put it back as it was, or audit it again."
        )


def changed(
    frame: Frame, targets: Sequence[str], task: Task, rows: NDArray, given: NDArray, *, as_written: bool = False
) -> NDArray[np.bool_]:
    """(rows of the file, q) whether a target has changed; rows that were not audited must have none."""
    if len(rows) and not 1 <= rows.min() <= rows.max() <= len(frame):
        odd = rows.min() if rows.min() < 1 else rows.max()
        raise InputError(
            f"{frame.path} has {len(frame)} rows, from 1, but the audit has a row {odd}: give the file that was "
            "audited, as it was."
        )
    if task == "classification":
        own = [texts(frame.columns[name], as_written=as_written) for name in targets]
    else:
        own = [numbers(frame, name, "the target of a regression is a number") for name in targets]
    differs = np.repeat(filled_rows(frame, targets, targets)[:, None], len(targets), axis=1)
    differs[rows - 1] = np.stack(own, axis=1)[rows - 1] != given
    return differs
