"""The rows that a run was trained on, loaded again to show some of them in its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradsieve.corruptions import CORRUPTIONS
from gradsieve.data import DATASETS, Rows, Task
from gradsieve.data.table import find_csv, find_roles, read_csv, split
from gradsieve.errors import InputError
from gradsieve.report.thumbnails import POINTED, data_uri, pointed
from gradsieve.training.run import Run
from gradsieve.training.setting import prepare

# Shapes of images that their loader returns as flat rows.
SHAPES = {"digits": (1, 8, 8)}
LINE = "line of the file"  # title of the column with line numbers
DECIDES = ("data", "data_dir", "data_options", "corruption", "rate", "corruption_seed")  # settings that decide the rows


@dataclass(frozen=True)
class ShownRows:
    """Pictures, cells and true targets to show for some rows, by row number."""

    pictures: Mapping[int, str] = field(default_factory=dict)  # data URIs
    cells: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # of a table, by column
    truths: Mapping[int, str] = field(default_factory=dict)  # whether the targets are wrong, if that is known
    has_points: bool = False  # whether targets are drawn on the pictures: given ones orange, suggested ones blue


@dataclass(frozen=True)
class SourceTargets:
    """The targets of all rows."""

    task: Task
    names: tuple[str, ...]  # of the classes, or of the outputs
    given: NDArray[Any]  # (N,) classes or (N, q) targets, as trained on
    clean: NDArray[Any] | None  # the same before corruption; None if they were not corrupted
    is_wrong: NDArray[np.bool_] | None  # (N,); None if they were not corrupted

    def __len__(self) -> int:
        return len(self.given)

    def truth(self, row: int) -> str:
        """Whether a row is wrong, in words, and its right class."""
        if self.is_wrong is None or not self.is_wrong[row]:
            return "right"
        if self.task == "classification" and self.clean is not None:
            return f"wrong, was {self.names[self.clean[row]]}"
        return "wrong"


@dataclass(frozen=True)
class SourceRows:
    """A run's training rows. A report keeps only the targets, and what `show` returns, in memory."""

    run: Run
    targets: SourceTargets
    rows: Rows
    pixels: tuple[torch.Tensor, torch.Tensor] | None  # mean and standard deviation of targets that are points

    def show(self, rows: Sequence[int], suggested: Mapping[int, Sequence[float]] | None = None) -> ShownRows:
        """Some of the rows for the report, with given and ``suggested`` points drawn on images."""
        inputs = self.rows.inputs
        shape = tuple(inputs.shape[1:]) if inputs.dim() == 4 else SHAPES.get(self.run.data)
        has_points = self.pixels is not None and inputs.dim() == 4
        return ShownRows(
            pictures={row: self.picture(row, shape, (suggested or {}).get(row)) for row in rows} if shape else {},
            cells=table_cells(self.run, rows) if self.run.data == "table" else {},
            truths={row: self.targets.truth(row) for row in rows} if self.targets.is_wrong is not None else {},
            has_points=has_points,
        )

    def picture(self, row: int, shape: tuple[int, ...], suggested: Sequence[float] | None) -> str:
        image = self.rows.inputs[row].numpy().reshape(shape)
        if self.pixels is None:
            return data_uri(image)
        mean, std = (each.numpy() for each in self.pixels)
        found = {"orange": self.targets.given[row]} | ({} if suggested is None else {"blue": np.array(suggested)})
        points = {colour: (values * std + mean).reshape(-1, 2) for colour, values in found.items()}
        return data_uri(pointed(image, points), side=2 * POINTED)


def read_source(settings: Mapping[str, Any]) -> SourceRows:
    """The training rows of a run by its settings, or an error that says why they cannot be loaded.

    Only data sets and corruptions of Gradsieve itself are loaded: a run folder from elsewhere must not run other code.
    """
    for what, table in (("data", DATASETS), ("corruption", CORRUPTIONS)):
        if settings.get(what) not in list(table):  # not ``in table``: that looks other names up by importing them
            raise InputError(f"The {what} {settings.get(what)!r} is not one of gradsieve's own: its rows are not read.")
    decisive = {name: settings[name] for name in DECIDES if name in settings}
    # The other settings do not influence the rows.
    run = Run(method="standard", model="mlp", epochs=1, batch_size=1, learning_rate=1.0, device="cpu", **decisive)
    setting = prepare(run)
    data, is_known = setting.data, run.corruption != "none"
    targets = SourceTargets(
        task=data.task,
        names=data.output_names,
        given=data.train.targets.numpy(),
        clean=setting.clean_targets.numpy() if is_known else None,
        is_wrong=setting.is_corrupted.numpy() if is_known else None,
    )
    return SourceRows(run, targets, data.train, data.pixels)


def table_cells(run: Run, rows: Sequence[int]) -> dict[int, dict[str, str]]:
    """The input cells of some of a table's training rows, as written in the file, with their line numbers."""
    table = read_csv(find_csv(Path(run.data_dir) if run.data_dir else None))
    _, inputs = find_roles(table, run.data_options.get("target", ""), run.data_options.get("ignore", ""))
    train = split(table)[0].tolist()
    return {
        row: {LINE: str(table.lines[train[row]])}
        | {table.header[column]: table.rows[train[row]][column] for column in inputs}
        for row in rows
    }
