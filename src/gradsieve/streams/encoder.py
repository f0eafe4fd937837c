"""From a frame to a network's inputs and targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsieve.arguments import argument
from gradsieve.errors import InputError
from gradsieve.tables.encoding import Encoding, NumberColumn
from gradsieve.tables.frame import Frame, is_text, number
from gradsieve.tables.targets import Targets, filled_rows, given_targets

BadRows = Literal["stop", "skip"]  # what to do about rows that cannot be read as the others are


class Encoded(NamedTuple):
    """Some rows as inputs and targets, and how many were left out."""

    rows: Tensor  # (n,) their numbers in the table
    inputs: Tensor  # (n, d) float32
    targets: Tensor  # (n,) or (n, q)
    bad: int = 0


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
    """The place and content of the first cell that is no finite number."""
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
    real_valued: Sequence[str]  # the targets whose cells are numbers
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
        """The rows with targets and without faults, and the number of faulty ones; the first is an error, or a note."""
        frame = frame.take(filled_rows(frame, self.targets.names, self.real_valued))
        good = is_good(frame, self.number_columns)
        if good.all():
            return frame, 0
        fault = first_fault(frame, self.number_columns, good)
        if self.bad_rows == "stop":
            raise InputError(
                f"{fault}. Correct or empty the cell, or leave such rows out with {argument('bad_rows', 'skip')}."
            )
        self.note(f"left out: {fault}")
        return frame.take(good), int((~good).sum())

    def part(self, frame: Frame) -> Encoded:
        """The usable rows of a frame, encoded."""
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
