"""A table as columns by name, and the values of their cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.arguments import argument
from gradsieve.data.table import EXACT, MISSING, MISSING_WORDS, finite_number, label
from gradsieve.errors import InputError
from gradsieve.registry import unknown
from gradsieve.tables.dates import iso_days
from gradsieve.tables.shards import IN_DAYS, Shards

FLAGS = (("False", "True"), ("false", "true"), ("FALSE", "TRUE"))
CORRECT = "Correct the cell, or leave it empty."


class Roles(NamedTuple):
    """How a fit uses the columns of a table."""

    targets: list[str]
    inputs: list[str]
    categorical: list[str]  # columns whose values are codes

    @property
    def has_codes(self) -> bool:
        """Whether a target holds codes: then its classes are compared as written."""
        return not set(self.targets).isdisjoint(self.categorical)


@dataclass(frozen=True)
class Frame:
    """Columns of equal length: numbers (float64, NaN if missing) or text ("" if missing)."""

    path: Path
    columns: dict[str, NDArray]
    lines: Sequence[int] | None = None  # for CSV, the line of each row in its file
    groups: dict[str, list[str]] = field(default_factory=dict)  # for NPZ, the columns of each two-dimensional array
    shards: Shards | None = None  # for Parquet and Arrow, the files
    row_numbers: NDArray[np.int64] | None = None  # and the rows' numbers in these

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        if self.shards is not None and self.row_numbers is not None:
            return self.shards.locate(int(self.row_numbers[row]))
        return f"{self.path}, " + (f"line {self.lines[row]}" if self.lines is not None else f"row {row + 1}")

    def take(self, rows: NDArray[np.bool_]) -> Frame:
        """Some of the rows; they keep their lines and numbers."""
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
                f"{argument('targets')} is missing: which column of {self.path} is to be predicted? "
                f"{', '.join(self.columns)}."
            )
        names, ignored = self.find(argument("targets"), targets), self.find(argument("ignore"), ignore)
        if set(names) & set(ignored):
            raise InputError(f"{argument('ignore')} names a target: {', '.join(sorted(set(names) & set(ignored)))}.")
        inputs = [name for name in self.columns if name not in {*names, *ignored}]
        codes = self.find(argument("categorical"), categorical)
        for name in names:
            if name not in codes and self.in_days(name):
                raise InputError(
                    f"{self.path}: the target {name} holds {self.in_days(name)}s, which as numbers need a unit. Make "
                    "them numbers, such as days since a day of your choice; or, if each of them is a class, give "
                    f"{argument('categorical', name)}."
                )
        return Roles(names, inputs, codes)

    def in_days(self, name: str) -> str:
        """The kind of time that a column holds (``IN_DAYS``), by its type, or in CSV by its cells; "" for none."""
        if self.shards is not None:
            kind = self.shards.columns[name]
            return kind if kind in IN_DAYS else ""
        return "date" if self.is_untyped(name) and read_all(self.columns[name], iso_days) is not None else ""

    def is_untyped(self, name: str) -> bool:
        """Whether a column is text because its file, a CSV, has no types."""
        return self.lines is not None and is_text(self.columns[name])


def is_text(values: NDArray) -> bool:
    return values.dtype.kind in "OU"


def number(cell: str) -> float | None:
    """A cell as a number: NaN if it is missing, None if it is no number."""
    text = cell.strip()
    return math.nan if text.lower() in MISSING else finite_number(text)


def is_missing(values: NDArray, *, among_numbers: bool = False) -> NDArray[np.bool_]:
    """Which cells of a column are missing; ``among_numbers`` more words mean that, such as none."""
    if is_text(values):
        return np.array([not written(cell, among_numbers=among_numbers) for cell in values], dtype=bool)
    return np.isnan(values)


def numbers(frame: Frame, name: str, why: str, way_out: str = CORRECT) -> NDArray[np.float64]:
    """A column as numbers, or an error that names the first cell that is none."""
    typed = typed_values(frame, name)
    if typed is not None:
        return typed
    values = frame.columns[name]
    if not is_text(values):
        bad = np.isinf(values)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(f"{frame.place(row)}, column {name}: {values[row]} is not finite. Correct or empty it.")
        return values
    found = [number(cell) for cell in values]
    if None in found:
        raise no_number(frame, name, [row for row, value in enumerate(found) if value is None], why, way_out)
    return np.array(found, dtype=np.float64)


def no_number(frame: Frame, name: str, wrong: Sequence[int], why: str, way_out: str) -> InputError:
    """The error about a column of text whose cells in the rows ``wrong`` are no numbers."""
    values = frame.columns[name]
    if not frame.is_untyped(name) and dates_or_flags(values) is not None:
        return InputError(
            f"{frame.place(wrong[0])}, column {name}: {str(values[wrong[0]])[:40]!r} is text, but {why}. Only "
            "in CSV are dates, and true and false, read from text: give the column a type, or give a CSV file."
        )
    flags = max(FLAGS, key=lambda spelling: sum(values[row].strip() in spelling for row in wrong))
    is_flags = 2 * sum(values[row].strip() in flags for row in wrong) > len(values)
    # Dates, and true and false if most cells are that, are as meant: name the first cell that is neither.
    row = next(
        (row for row in wrong if iso_days(values[row]) is None and not (is_flags and values[row].strip() in flags)),
        wrong[0],
    )
    neither = f"neither {flags[1]} nor {flags[0]}, as the others are"
    what = neither if is_flags else f"not a finite number, but {why}"
    return InputError(f"{frame.place(row)}, column {name}: {str(values[row])[:40]!r} is {what}. {way_out}")


def texts(values: NDArray, *, as_written: bool = False) -> NDArray:
    """A column as text, "" if missing. 1, 01 and 1.0 become the same text, unless taken ``as_written``."""
    read = written if as_written else label
    known = {cell: read(cell) if isinstance(cell, str) else label(repr(cell)) for cell in set(values.tolist())}
    # A NaN is missing, and not found as a key.
    return np.array([known.get(cell, "") for cell in values.tolist()], dtype=object)


def written(cell: str, *, among_numbers: bool = False) -> str:
    """A cell without spaces around it, "" if it is missing."""
    text = cell.strip()
    return "" if text.lower() in (MISSING if among_numbers else MISSING_WORDS) else text


def numeric_if_all(cells: NDArray) -> NDArray:
    """The cells as numbers if all are numbers or missing, but not all missing; else as they are."""
    found = read_all(cells, finite_number)
    return cells if found is None else found


def typed_values(frame: Frame, name: str) -> NDArray[np.float64] | None:
    """Dates, or true and false, in a column of CSV as the numbers that files with types give; None for others."""
    return dates_or_flags(frame.columns[name]) if frame.is_untyped(name) else None


def dates_or_flags(cells: NDArray) -> NDArray[np.float64] | None:
    """Cells of text as numbers, if all are dates, or all true or false in one spelling."""
    readers = [iso_days, *({no: 0.0, yes: 1.0}.get for no, yes in FLAGS)]
    return next((found for read in readers if (found := read_all(cells, read)) is not None), None)


def read_all(cells: NDArray, read: Callable[[str], float | None]) -> NDArray[np.float64] | None:
    """Each cell as ``read`` gives it, NaN if missing; None if ``read`` gives None for one, or all are missing."""
    values: list[float] = []
    for cell in cells.tolist():
        text = cell.strip()
        value = math.nan if text.lower() in MISSING else read(text)
        if value is None:
            return None
        values.append(value)
    found = np.array(values, dtype=np.float64)
    return None if np.isnan(found).all() else found


def check_exact(frame: Frame, name: str, way_out: str) -> None:
    """Refuse codes so large that two may become the same float64."""
    values = frame.columns[name]
    large = [] if is_text(values) else np.flatnonzero(np.isfinite(values) & (np.abs(values) >= EXACT))
    if len(large):
        raise InputError(
            f"{frame.place(int(large[0]))}, column {name}: as a number, {values[large[0]]:.0f} is too large to be told "
            f"apart from the next (2^53 and more). {way_out}"
        )


def as_names(columns: str | Sequence[str]) -> list[str]:
    """The names of columns without repetition; a single one may be given as text."""
    return [columns] if isinstance(columns, str) else list(dict.fromkeys(columns))
