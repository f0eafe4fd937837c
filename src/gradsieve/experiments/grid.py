"""The runs of an experiment, as pure functions of the user's choices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from gradsieve.arguments import argument
from gradsieve.corruptions import CORRUPTIONS
from gradsieve.data import DATASETS, Task
from gradsieve.errors import InputError
from gradsieve.experiments.experiment import CLEAN, FEATURES, Experiment, Variant, column_label, parts_of
from gradsieve.methods import METHODS
from gradsieve.registry import unknown
from gradsieve.training.run import Preset, Run, make_run

DATA = {"CF10": "cifar10", "CF100": "cifar100"}
SHORT = {"sym": "symmetric", "pf": "pairflip"}  # the paper's names of corruptions
ROW = re.compile(r"(?:(CF100?)-)?([a-z]+|[\w.]+:\w+)-([1-9]\d?)")  # data, corruption (or module:function), percentage


@dataclass(frozen=True)
class Scope:
    """How much of an experiment to run, and how. The default: all of it, as in the paper."""

    rows: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    preset: Preset = "authors"
    epochs: int | None = None
    data: str | None = None  # another data set instead of the paper's, with the same corruptions
    data_dir: str | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"


@dataclass(frozen=True)
class Cell:
    """One run of a grid, and its place in the table."""

    experiment: str
    row: str
    method: str
    variant: str
    seed: int
    run: Run
    folder: str  # within runs/ of the grid's folder; equal runs of different experiments share it
    by_hand: Mapping[str, Any] = field(default_factory=dict)  # model options that the user set

    @property
    def label(self) -> str:
        return f"{self.row} {column_label(self.method, self.variant)} seed {self.seed}"


class Row(NamedTuple):
    """A row of a table: its name, and what it stands for."""

    name: str
    data: str
    corruption: str
    rate: float


def make_cells(name: str, scope: Scope) -> list[Cell]:
    """The chosen runs of an experiment, seed by seed, so that the whole table fills up evenly."""
    parts = list(chosen_parts(parts_of(name), scope))
    cells = [cell for part, narrowed in parts for cell in part_cells(part, narrowed)]
    if not cells:
        chosen = ", ".join((*scope.rows, *scope.methods, *scope.variants))
        raise InputError(f"No run of {name} has all that was chosen: {chosen}. Choose less at once.")
    return sorted(cells, key=lambda cell: cell.seed)  # stable: within a seed the order is kept


def chosen_parts(parts: list[Experiment], scope: Scope) -> Iterator[tuple[Experiment, Scope]]:
    """The tables that have a chosen row and method, each with the chosen ones that are its own, without repeats."""
    if scope.data is not None:
        require_fit("data set", scope.data, DATASETS, parts)
        parts = [part for part in parts if part.task in DATASETS[scope.data].tasks]
    for row in scope.rows:
        if scope.data is not None:
            require_fit("corruption", row_of(row, parts[0], scope.data).corruption, CORRUPTIONS, parts)
        elif not any(row in part.rows for part in parts):
            way = " A corruption of yours needs another data set beside it (data)." if ":" in row else ""
            raise InputError(unknown("row", row, dict.fromkeys(row for part in parts for row in part.rows)) + way)
    for method in scope.methods:
        require_fit("method", method, METHODS, parts)
    variants = {variant.name: variant for part in parts for variant in part.variants if variant.name}
    for name in scope.variants:
        if name not in variants:
            raise InputError(unknown("variant", name, variants))
    for part in parts:
        rows = tuple(row for row in dict.fromkeys(scope.rows) if has_row(part, row, scope.data))
        methods = tuple(name for name in dict.fromkeys(scope.methods) if part.task in METHODS[name].tasks)
        if bool(rows) == bool(scope.rows) and bool(methods) == bool(scope.methods):
            yield part, replace(scope, rows=rows, methods=methods)


def require_fit(kind: str, name: str, table: Mapping[str, Any], parts: Sequence[Experiment]) -> None:
    """Refuse a choice that is not made for the task of any of the tables."""
    if any(part.task in table[name].tasks for part in parts):
        return
    task = parts[0].task
    fitting = ", ".join(other for other in table if task in table[other].tasks)
    raise InputError(
        f"The {kind} {name} is made for {' and '.join(table[name].tasks)}, but {parts[0].name} is {task}: there are "
        f"{fitting}."
    )


def has_row(experiment: Experiment, row: str, data: str | None) -> bool:
    """Whether a row belongs to the table: on the paper's data one of its rows, on other data any of its task."""
    if data is None:
        return row in experiment.rows
    return experiment.task in CORRUPTIONS[row_of(row, experiment, data).corruption].tasks


def part_cells(experiment: Experiment, scope: Scope) -> Iterator[Cell]:
    """The runs of one table."""
    default = dict.fromkeys(bare(row) if scope.data else row for row in experiment.rows)
    rows = [row_of(name, experiment, scope.data) for name in scope.rows or default]
    for seed in scope.seeds or range(1, experiment.seeds + 1):
        for row in rows:
            # Without corruption no row is dropped: every method would equal plain training.
            methods = ("standard",) if row.corruption == "none" else scope.methods or experiment.methods
            for method in methods:
                for variant in experiment.variants:
                    if scope.variants and variant.name not in scope.variants:
                        continue
                    yield make_cell(experiment, row, method, variant, seed, scope)


def make_cell(experiment: Experiment, row: Row, method: str, variant: Variant, seed: int, scope: Scope) -> Cell:
    """One run. Its folder is named after its settings, so that experiments share runs without a variant."""
    options = task_options(row.data, experiment.task)
    plain = variant_run(row, method, Variant(), seed, scope, options)
    run = variant_run(row, method, variant, seed, scope, options, experiment.epochs)
    if spelled_out(run) == spelled_out(plain):
        run = plain
    tag = "" if run == plain else f"-{variant.name}"
    folder = f"{row.name}/{method}{tag}-seed{seed}".replace(":", ".")
    return Cell(experiment.name, row.name, method, variant.name, seed, run, folder, scope.model_options)


def task_options(data: str, task: Task) -> dict[str, Any]:
    """The ``task`` option for a data set that serves both tasks, if its default is not the one that a table needs."""
    own = signature(DATASETS[data].load).parameters.get("task")
    return {} if own is None or own.default == task else {"task": task}


def spelled_out(run: Run) -> Run:
    """A run with the defaults of its method's options filled in, to compare with another."""
    options = {each.name: each.default for each in fields(METHODS[run.method]) if each.default is not MISSING}
    return replace(run, method_options={**options, **run.method_options})


def variant_run(
    row: Row,
    method: str,
    variant: Variant,
    seed: int,
    scope: Scope,
    data_options: Mapping[str, Any],
    epochs: int | None = None,
) -> Run:
    """The run of a method in a variant on a row."""
    drop_rate = round(row.rate + variant.drop_more, 6)  # 0.7 - 0.05 is not 0.65 in floats
    if not 0 <= drop_rate < 1:
        raise InputError(
            f"{row.name} at {variant.name} would drop the share {drop_rate:g} of the rows. Choose others of the "
            f"{argument('variants')}, or another row."
        )
    return make_run(
        row.data,
        method,
        corruption=row.corruption,
        rate=row.rate,
        drop_rate=drop_rate,
        preset=scope.preset,
        seed=seed,
        method_options=variant.method_options,
        model_options={**variant.model_options, **scope.model_options},
        epochs=epochs if scope.epochs is None else scope.epochs,
        ramp=variant.ramp,
        data_dir=scope.data_dir,
        data_options=data_options,
        device=scope.device,
        compile="shared",
    )


def row_of(name: str, experiment: Experiment, data: str | None) -> Row:
    """The row of a name, which holds data (optional), corruption and percentage."""
    full = f"{data}-{name}" if data else name
    if name == CLEAN:
        return Row(full, data or FEATURES, "none", 0.0)
    match = ROW.fullmatch(name)
    corruption = SHORT.get(match[2], match[2]) if match else ""
    if match is None or corruption not in CORRUPTIONS or (data and match[1]):
        some = ", ".join(dict.fromkeys(map(bare, experiment.rows)))
        raise InputError(
            f"There is no row {name!r}: it is a corruption and a percentage, such as {some}, or module:function-40 for "
            "one of yours."
        )
    return Row(full, data or DATA.get(match[1], FEATURES), corruption, int(match[3]) / 100)


def bare(row: str) -> str:
    """A row's name without its data."""
    return row.removeprefix("CF10-").removeprefix("CF100-")


def read_seeds(text: str) -> tuple[int, ...]:
    """The seeds in a text: ``3`` is 1 to 3, ``2,5`` and ``4-6`` are as they say."""
    try:
        seeds: dict[int, None] = {}
        for item in [f"1-{text}"] if text.strip().isdigit() else text.split(","):
            first, _, last = item.partition("-")
            seeds |= dict.fromkeys(range(int(first), int(last or first) + 1))
    except ValueError:
        seeds = {}
    if not seeds:
        raise InputError(
            f"{argument('seeds')} is {text!r}, but must be how many (3), which (2,5), or from where to where (4-6)."
        )
    return tuple(seeds)


def cell_path(out: Path, cell: Cell) -> Path:
    """The folder of a cell's run."""
    return out / run_folder(cell)


def run_folder(cell: Cell) -> str:
    """The same, relative to the grid's folder."""
    return f"runs/{cell.folder}"
