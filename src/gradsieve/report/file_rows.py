"""Rows of an audited file, which the user gives to show them in the report: a table's cells, a folder's images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradsieve.audit.source import require_audited
from gradsieve.data import Task
from gradsieve.errors import InputError, MissingExtraError
from gradsieve.report.findings import Findings, given_targets
from gradsieve.report.source_rows import LINE, ShownRows
from gradsieve.report.thumbnails import SIDE, data_uri
from gradsieve.tables.reading import read_frame, read_written
from gradsieve.tables.shards import is_shards


def show_file(source: Path, findings: Findings) -> ShownRows:
    """The cells or pictures of the rows of an audit, from the audited file or folder of images."""
    rows = [row for row in findings.columns["row"] if isinstance(row, int)]
    if source.is_dir() and not is_shards(source):
        return ShownRows(pictures=file_pictures(source, rows, findings.columns.get("file", ())))
    targets = findings.summary.get("target")
    if findings.file is not None and targets:  # audits of older versions do not name their target columns
        task: Task = "classification" if findings.summary.get("task") == "classification" else "regression"
        require_audited(source, targets, task, *given_targets(findings.file, task, len(targets)))
    return ShownRows(cells=file_cells(source, rows, findings.summary))


def file_cells(source: Path, rows: Sequence[int], summary: Any) -> dict[int, dict[str, str]]:
    """Cells by column as written in the file, for rows counted from 1; without real-valued targets, shown elsewhere."""
    frame = read_frame(source)
    if any(not 1 <= row <= len(frame) for row in rows):
        raise InputError(f"{source} has {len(frame)} rows, but the audit has others. Give the file that was audited.")
    cells = read_written(source, [row - 1 for row in rows])
    names = summary.get("names", ()) if summary.get("task") == "regression" else ()  # names of target columns
    shown = [name for name in frame.columns if name not in names]
    lines = {row: {} if frame.lines is None else {LINE: str(frame.lines[row - 1])} for row in rows}
    return {row: lines[row] | {name: cells[row - 1][name] for name in shown} for row in rows}


def file_pictures(folder: Path, rows: Sequence[int], files: Sequence[Any]) -> dict[int, str]:
    """The images by row. Those that are missing, or whose path leads out of the folder, are left out."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "data", "Showing images") from error
    found = {}
    place = Path(os.path.abspath(folder))  # not resolve(): symbolic links in the user's own folder are allowed
    for row, name in zip(rows, files, strict=False):
        path = Path(os.path.abspath(place / str(name)))
        if not path.is_relative_to(place) or not path.is_file():
            continue
        try:
            with Image.open(path) as image:
                image.thumbnail((SIDE, SIDE))
                found[row] = data_uri(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    return found
