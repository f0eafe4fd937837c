"""CSV, Parquet, Arrow and NPZ files as frames."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gradsieve.data.table import read_csv
from gradsieve.errors import InputError
from gradsieve.tables import shard_frames
from gradsieve.tables.frame import Frame, numeric_if_all
from gradsieve.tables.shards import FORMATS, is_shards


def read_frame(path: Path, *, least_rows: int = 1, words: Collection[str] = (), as_text: Collection[str] = ()) -> Frame:
    """The rows of a CSV, NPZ, Parquet or Arrow file by its suffix, or of a folder of Parquet or Arrow files.

    ``words``: columns that stay text if they are text in the file (in CSV all are), even if they look like numbers.
    ``as_text``: columns that become text, whatever their type in the file.
    """
    of_shards = partial(shard_frames.read_shards, as_text=as_text)
    readers = {
        ".csv": partial(_read_csv, words={*words, *as_text}),
        ".npz": partial(_read_npz, as_text=as_text),
        **dict.fromkeys(FORMATS, of_shards),
    }
    reader = of_shards if path.is_dir() else readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{path} is not a file that can be read: give a .csv, .parquet, .arrow or .npz file, or a folder of "
            "Parquet or Arrow files or of class folders."
        )
    if not path.exists():
        raise InputError(f"There is no file {path}.")
    frame = reader(path)
    if not frame.columns or len(frame) < least_rows:
        rows = len(frame) if frame.columns else 0
        raise InputError(f"{path} holds {rows} rows, but at least {least_rows} are needed.")
    return frame


def read_written(path: Path, rows: Collection[int]) -> dict[int, dict[str, str]]:
    """The cells of some ``rows`` of such a file, from 0, as they are written, by row and column."""
    if is_shards(path):
        return shard_frames.read_written(path, rows)
    frame = read_frame(path, as_text=read_frame(path).columns)
    return {row: {name: str(values[row]) for name, values in frame.columns.items()} for row in rows}


def _read_csv(path: Path, words: Collection[str]) -> Frame:
    table = read_csv(path, least_rows=1, least_columns=1)
    columns = {
        name: np.array([row[place] for row in table.rows], dtype=object) for place, name in enumerate(table.header)
    }
    columns = {name: cells if name in words else numeric_if_all(cells) for name, cells in columns.items()}
    return Frame(path, columns, table.lines)


def _read_npz(path: Path, as_text: Collection[str]) -> Frame:
    try:
        file = np.load(path, allow_pickle=False)  # pickles in a file could run code
        if isinstance(file, np.ndarray):
            raise ValueError("it has one array without a name, as numpy.save writes it; numpy.savez writes names, too")
        with file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, BadZipFile, EOFError) as error:
        are_objects = "Object arrays" in str(error)
        way = " Text, such as a column of pandas, is a plain array as values.astype(str)." if are_objects else ""
        raise InputError(f"{path} cannot be read as NPZ of plain arrays: {str(error).rstrip('.')}.{way}") from error
    columns: dict[str, NDArray] = {}
    groups: dict[str, list[str]] = {}
    for name, array in arrays.items():
        if array.ndim not in (1, 2) or array.dtype.kind not in "biufU":
            raise InputError(
                f"{path}: the array {name} has the shape {array.shape} and dtype {array.dtype}, but columns are (N,) "
                "and tables (N, d) of numbers or text."
            )
        parts = array.reshape(len(array), -1)
        own = [name] if array.ndim == 1 else [f"{name}_{place}" for place in range(parts.shape[1])]
        groups |= {name: own} if array.ndim == 2 else {}
        for place, column in enumerate(own):
            if column in columns:
                raise InputError(
                    f"{path}: two arrays give a column {column}, since a table (N, d) numbers its columns so. Save one "
                    "of the arrays under another name."
                )
            values = parts[:, place]
            values = values.astype(str) if {name, column} & {*as_text} else values
            columns[column] = values.astype(object) if values.dtype.kind == "U" else values.astype(np.float64)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{path}: the arrays have different numbers of rows: {lengths}. All must be alike.")
    return Frame(path, columns, groups=groups)
