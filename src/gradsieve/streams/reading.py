"""From Arrow's columns to a frame's, and from a frame to what a network reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsieve.errors import InputError
from gradsieve.files.encoding import Encoding, NumberColumn
from gradsieve.files.frame import Frame, is_text, number
from gradsieve.files.targets import Targets, filled_rows, given_targets
from gradsieve.streams.order import SLICE, in_file_order
from gradsieve.streams.shards import BadRows, Reader, Shards, Slice, arrow, open_shards


class Encoded(NamedTuple):
    """Some rows as a network reads them, and how many were left out."""

    rows: Tensor  # (n,) their numbers
    inputs: Tensor  # (n, d) float32
    targets: Tensor  # (n,) or (n, q)
    bad: int = 0


def read_shards(path: Path) -> Frame:
    """A whole table in memory."""
    shards = open_shards(path)
    parts = list(frames(shards, list(shards.columns)))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in shards.columns}
    return Frame(path, columns, shards=shards, row_numbers=np.arange(len(shards)))


def frames(shards: Shards, names: Sequence[str]) -> Iterator[Frame]:
    """All rows in the order of the files, a part at a time."""
    reader = Reader(shards, names)
    for part in in_file_order(shards.groups, SLICE):
        yield read_slice(reader, part)


def read_slice(reader: Reader, part: Slice) -> Frame:
    """The rows of a slice as a frame that knows where each of them stands."""
    table = reader.read(part)
    columns = {name: to_numpy(table.column(name)) for name in reader.names}
    return Frame(reader.shards.path, columns, shards=reader.shards, row_numbers=part.first + np.arange(part.rows))


def to_numpy(column: Any) -> NDArray:
    """A column of Arrow as float64, NaN where it is missing, or as text, "" where it is missing."""
    pa, kind = arrow(), column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_temporal(kind):  # a date is a number of days or smaller units
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return to_text(column)
    numbers = column.cast(pa.float64(), safe=False).to_numpy()
    return numbers.copy() if kind == pa.float64() else numbers  # no cast: a view of a file that may be mapped


def to_text(column: Any) -> NDArray:
    pa = arrow()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.fill_null("").to_numpy()
    cells = [cell.decode(errors="replace") if isinstance(cell, bytes) else cell for cell in column.to_pylist()]
    return np.array(["" if cell is None else str(cell) for cell in cells], dtype=object)


def is_good(frame: Frame, number_columns: Iterable[str]) -> NDArray[np.bool_]:
    """The rows in which every one of these columns holds a finite number, or nothing."""
    good = np.ones(len(frame), dtype=bool)
    for name in number_columns:
        values = frame.columns[name]
        if is_text(values):
            good &= np.array([number(cell) is not None for cell in values], dtype=bool)
        else:
            good &= ~np.isinf(values)
    return good


def first_fault(frame: Frame, number_columns: Sequence[str], good: NDArray[np.bool_]) -> str:
    """The first cell that is no finite number, in words."""
    row = int(np.flatnonzero(~good)[0])
    for name in number_columns:
        value = frame.columns[name][row]
        found = number(value) if isinstance(value, str) else float(value)
        if found is None or math.isinf(found):
            return f"{frame.place(row)}, column {name}: {str(value)[:40]!r} is not a finite number"
    raise AssertionError("no fault in a row that has one")


@dataclass(frozen=True)
class Encoder:
    """How a frame becomes inputs and targets; what to do with rows that cannot."""

    encoding: Encoding
    targets: Targets
    amounts: Sequence[str]  # targets among whose numbers a word is no class
    drops: bool  # whether the method drops rows, which limits how far a target may lie away
    bad_rows: BadRows
    note: Callable[[str], None] = lambda text: None

    @property
    def names(self) -> list[str]:
        return [*self.encoding.names, *self.targets.names]

    @property
    def number_columns(self) -> list[str]:
        """The columns whose cells must be numbers."""
        own = self.targets.names if self.targets.task == "regression" else []
        return [*(column.name for column in self.encoding.columns if isinstance(column, NumberColumn)), *own]

    def usable(self, frame: Frame) -> tuple[Frame, int]:
        """The rows that have a target and no fault, and how many have one; the first fault is an error, or a note."""
        frame = frame.take(filled_rows(frame, self.targets.names, self.amounts))
        good = is_good(frame, self.number_columns)
        if good.all():
            return frame, 0
        fault = first_fault(frame, self.number_columns, good)
        if self.bad_rows == "stop":
            raise InputError(f"{fault}. Correct or empty the cell, or leave such rows out with --bad-rows skip.")
        self.note(f"left out: {fault}")
        return frame.take(good), int((~good).sum())

    def part(self, frame: Frame) -> Encoded:
        """The usable rows of a frame."""
        frame, bad = self.usable(frame)
        given = given_targets(frame, self.targets)
        scaled = self.targets.scaled(given, self.drops)
        assert frame.row_numbers is not None
        rows = torch.from_numpy(np.ascontiguousarray(frame.row_numbers))
        return Encoded(rows, torch.from_numpy(self.encoding.apply(frame)), torch.from_numpy(scaled), bad)


def joined(parts: Sequence[Encoded]) -> Encoded:
    """Several parts as one."""
    rows, inputs, targets, bad = zip(*parts, strict=True)
    return Encoded(torch.cat(rows), torch.cat(inputs), torch.cat(targets), sum(bad))
