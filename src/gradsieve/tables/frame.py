"""A table as columns by name, and what their cells say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.data.table import MISSING, MISSING_WORDS, finite_number
from gradsieve.errors import InputError
from gradsieve.registry import unknown
from gradsieve.tables.shards import Shards

CORRECT = "Correct the cell, or leave it empty."


class Roles(NamedTuple):
    """What a fit takes the columns of a table for."""

    targets: list[str]
    inputs: list[str]
    categorical: list[str]  # those of the inputs whose numbers are codes


@dataclass(frozen=True)
class Frame:
    """Columns of numbers (float64, NaN where missing) or of text ("" where missing), as long as each other."""

    path: Path
    columns: dict[str, NDArray]
    lines: Sequence[int] | None = None  # where a row stands in its file, for CSV
    groups: dict[str, list[str]] = field(default_factory=dict)  # arrays that became several columns
    shards: Shards | None = None  # the files, for Parquet and Arrow
    row_numbers: NDArray[np.int64] | None = None  # in these

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int) -> str:
        """Where a row is, in words."""
        if self.shards is not None and self.row_numbers is not None:
            return self.shards.locate(int(self.row_numbers[row]))
        return f"{self.path}, " + (f"line {self.lines[row]}" if self.lines is not None else f"row {row + 1}")

    def take(self, rows: NDArray[np.bool_]) -> Frame:
        """Some of the rows, at the places that they had."""
        places = [line for line, taken in zip(self.lines, rows, strict=True) if taken] if self.lines else self.lines
        numbers = None if self.row_numbers is None else self.row_numbers[rows]
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, lines=places, row_numbers=numbers)

    def find(self, option: str, names: Iterable[str]) -> list[str]:
        """The columns that an option names."""
        found: list[str] = []
        for name in names:
            if name not in self.columns and name not in self.groups:
                near = dict.fromkeys([*self.groups, *self.columns])
                raise InputError(f"{option}: {unknown('column', name, near)} File: {self.path}.")
            found += self.groups.get(name, [name])
        return list(dict.fromkeys(found))

    def roles(self, targets: Sequence[str], ignore: Sequence[str], categorical: Sequence[str]) -> Roles:
        """Targets, inputs and codes, by the options that name them."""
        if not targets:
            raise InputError(
                f"--target is missing: which column of {self.path} is to be predicted? {', '.join(self.columns)}."
            )
        names, ignored = self.find("--target", targets), self.find("--ignore", ignore)
        if set(names) & set(ignored):
            raise InputError(f"--ignore names a target: {', '.join(sorted(set(names) & set(ignored)))}.")
        inputs = [name for name in self.columns if name not in {*names, *ignored}]
        return Roles(names, inputs, self.find("--categorical", categorical))


def is_text(values: NDArray) -> bool:
    return values.dtype.kind in "OU"


def number(cell: str) -> float | None:
    """What a cell says as a number: NaN where it holds nothing, None where it is something else."""
    text = cell.strip()
    return math.nan if text.lower() in MISSING else finite_number(text)


def is_missing(values: NDArray, *, among_numbers: bool = False) -> NDArray[np.bool_]:
    """Which cells of a column hold nothing."""
    if is_text(values):
        return np.array([not written(cell, among_numbers=among_numbers) for cell in values], dtype=bool)
    return np.isnan(values)


def numbers(frame: Frame, name: str, why: str, way_out: str = CORRECT) -> NDArray[np.float64]:
    """A column as numbers, or an error that names the first cell which is none."""
    values = frame.columns[name]
    if not is_text(values):
        bad = np.isinf(values)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(f"{frame.place(row)}, column {name}: {values[row]} is not finite. Correct or empty it.")
        return values
    found = [number(cell) for cell in values]
    if None in found:
        row = found.index(None)
        raise InputError(
            f"{frame.place(row)}, column {name}: {str(values[row])[:40]!r} is not a finite number, but {why}. {way_out}"
        )
    return np.array(found, dtype=np.float64)


def texts(values: NDArray, *, as_written: bool = False) -> NDArray:
    """A column as text, "" where it is missing. 1, 01 and 1.0 are the same, unless they are text ``as_written``."""
    read = written if as_written else label
    known = {cell: read(cell) if isinstance(cell, str) else label(repr(cell)) for cell in set(values.tolist())}
    # A NaN is not found again as a key: it is a missing value.
    return np.array([known.get(cell, "") for cell in values.tolist()], dtype=object)


def label(cell: str) -> str:
    value = number(cell)
    if value is None or math.isnan(value):
        return written(cell)
    return str(int(value)) if value.is_integer() else str(value)


def written(cell: str, *, among_numbers: bool = False) -> str:
    text = cell.strip()
    return "" if text.lower() in (MISSING if among_numbers else MISSING_WORDS) else text


def numeric_if_all(cells: NDArray) -> NDArray:
    """A column of numbers where every cell is one or missing, and one is there."""
    found = [number(cell) for cell in cells]
    if None in found or all(math.isnan(value) for value in found if value is not None):
        return cells
    return np.array(found, dtype=np.float64)
