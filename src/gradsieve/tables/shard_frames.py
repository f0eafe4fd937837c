"""Parquet and Arrow files as frames."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.tables.dates import PER_DAY, days
from gradsieve.tables.frame import Frame
from gradsieve.tables.shard_reader import Reader
from gradsieve.tables.shards import IN_DAYS, SLICE, Shards, Slice, arrow, in_file_order, open_shards

MOST_DECIMALS = 15  # decimals to which a float64 can be rounded exactly


def read_shards(path: Path, as_text: Collection[str] = ()) -> Frame:
    """A whole table in memory, the columns ``as_text`` as text whatever their type."""
    shards = open_shards(path).with_text(as_text)
    parts = list(frames(shards, list(shards.columns)))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shards.columns}
    return Frame(path, columns, shards=shards, row_numbers=np.arange(len(shards)))


def read_written(path: Path, rows: Collection[int]) -> dict[int, dict[str, str]]:
    """The cells of some rows as they are written, by row and column; only one slice is in memory at a time."""
    shards = open_shards(path)
    shards = shards.with_text(shards.columns)
    reader, found = Reader(shards, list(shards.columns)), {}
    for part in in_file_order(shards.groups, SLICE):
        own = [row for row in rows if 0 <= row - part.first < part.rows]
        cells = read_slice(reader, part).columns if own else {}
        found |= {row: {name: str(values[row - part.first]) for name, values in cells.items()} for row in own}
    return found


def frames(shards: Shards, names: Sequence[str]) -> Iterator[Frame]:
    """All rows in the order of the files, slice by slice."""
    reader = Reader(shards, names)
    for part in in_file_order(shards.groups, SLICE):
        yield read_slice(reader, part)


def read_slice(reader: Reader, part: Slice) -> Frame:
    """The rows of a slice as a frame with their numbers."""
    table = reader.read(part)
    columns = {name: to_numpy(table.column(name), reader.shards.columns[name]) for name in reader.names}
    return Frame(reader.shards.path, columns, shards=reader.shards, row_numbers=part.first + np.arange(part.rows))


def to_numpy(column: Any, kind: str) -> NDArray:
    """A column of Arrow, by its ``kind``, as float64 (NaN if missing) or text ("" if missing)."""
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kind == "text":
        return to_text(column)
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if kind in IN_DAYS:
        return to_days(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    numbers = column.cast(pa.float64(), safe=False).to_numpy()
    if pa.types.is_decimal(column.type) and 0 <= column.type.scale <= MOST_DECIMALS:
        return np.round(numbers, column.type.scale)  # the cast may be off by the last bit
    return numbers.copy() if column.type == pa.float64() else numbers  # a view of the mapped file, if not cast


def to_days(column: Any) -> NDArray[np.float64]:
    """Dates and instants as days since 1970 in UTC, times of day and durations as days."""
    pa, kind = arrow(), column.type
    unit = "ms" if pa.types.is_date64(kind) else getattr(kind, "unit", "")
    units = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).fill_null(0).to_numpy()
    found = days(units.astype(np.int64), PER_DAY.get(unit, 1))  # date32 has no unit: it is in days
    found[column.is_null().to_numpy()] = np.nan
    return found


def to_text(column: Any) -> NDArray:
    pa = arrow()
    kind = column.type
    if (pa.types.is_primitive(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.fill_null("").to_numpy()
    cells = [cell.decode(errors="replace") if isinstance(cell, bytes) else cell for cell in column.to_pylist()]
    return np.array(["" if cell is None else str(cell) for cell in cells], dtype=object)
