"""An experiment of the paper from beginning to end: its runs, then its table and curves beside the paper's."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gradsieve.arguments import argument, flags
from gradsieve.data import DATASETS
from gradsieve.data.features import ABOUT
from gradsieve.errors import GradsieveError, InputError, RunFolderError
from gradsieve.experiments.estimate import Estimate, estimate, in_words
from gradsieve.experiments.experiment import EXPERIMENTS, FEATURES, PARTS
from gradsieve.experiments.features import ensure_features
from gradsieve.experiments.grid import Cell, Scope, cell_path, make_cells, run_folder
from gradsieve.experiments.grid_folder import claim, is_ours, result_of, write_reports
from gradsieve.experiments.ray_pool import Cluster, run_on_ray
from gradsieve.experiments.records import Record
from gradsieve.experiments.remote_folder import Mirror, fetch_run, is_report
from gradsieve.experiments.watch import Watch, make_watch
from gradsieve.experiments.workers import Outcome, Task, attempt, run_in_workers
from gradsieve.method import make_method
from gradsieve.methods import METHODS
from gradsieve.models.build import build
from gradsieve.training.interrupt import Interrupted
from gradsieve.training.run import Run
from gradsieve.training.setting import CRITERIA, choose_device


class Reproduced(NamedTuple):
    """The outcome of an experiment."""

    records: dict[str, list[Record]]  # by table
    failures: list[tuple[Cell, str]]  # runs that ended without a result, and why


def reproduce(
    name: str,
    scope: Scope,
    out: Path,
    *,
    jobs: int | None = None,
    show: bool = False,
    cluster: Cluster | None = None,
    mirror: Mirror | None = None,
) -> Reproduced:
    """Train the runs that are not finished yet, and write the report.

    ``jobs`` runs at a time: by default 1, on a ``cluster`` as many as it has room for. If it is interrupted, killed or
    out of disk space, all finished runs are kept, and the same call goes on from there. ``mirror``: the copy of an
    address, if ``out`` is one (``remote_folder.mirrored``).
    """
    check_jobs(name, jobs, cluster)
    cells = plan(name, scope, out)
    device = choose_device(scope.device).type
    if mirror is not None:
        check_mirrored(cells, mirror)
    claim(out, scope)
    if mirror is not None:
        mirror.push(is_report)  # before the first run: claims the address, and fails early if it is not writable
    watch = make_watch(show)(cells, out, jobs or 1, device)
    try:
        with sigterm_as_ctrl_c(), watch:
            left = [cell for cell in cells if result_of(cell, out) is None]
            if any(cell.run.data == FEATURES for cell in left):
                ensure_features(scope.data_dir, out / "features", scope.device, watch.say)
            check_cells(left)
            failures = run_cells(cells, out, jobs=jobs, watch=watch, cluster=cluster, mirror=mirror)
    finally:
        records = write_reports(name, cells, out)
    return Reproduced(records, failures)


def plan(name: str, scope: Scope, out: Path) -> list[Cell]:
    """The runs, each with the absolute folder of its data, so that a begun run compares equal from anywhere."""
    features = str((out / "features").resolve())

    def with_folder(cell: Cell) -> Cell:
        given = cell.run.data_dir and str(Path(cell.run.data_dir).resolve())
        return replace(cell, run=replace(cell.run, data_dir=features if cell.run.data == FEATURES else given))

    return [with_folder(cell) for cell in make_cells(name, scope)]


def check_cells(cells: Sequence[Cell]) -> None:
    """Load every data set, make every method and network: fails before the first run instead of hours into a grid."""
    by_data: dict[str, list[Run]] = {}
    for cell in cells:
        by_data.setdefault(json.dumps([cell.run.data, cell.run.data_dir, cell.run.data_options]), []).append(cell.run)
    for runs in by_data.values():
        data_dir = runs[0].data_dir
        loaded = DATASETS[runs[0].data](Path(data_dir) if data_dir else None, **runs[0].data_options)
        shape = tuple(loaded.train.inputs.shape[1:])
        for run in runs:
            make_method(run.method, METHODS, CRITERIA[loaded.task], loaded.task, run.method_options)
        for run in {json.dumps([run.model, run.model_options]): run for run in runs}.values():
            with torch.random.fork_rng(devices=[]):  # keeps the caller's random state
                build(run.model, shape, loaded.outputs, run.model_options)


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    *,
    jobs: int | None,
    watch: Watch,
    cluster: Cluster | None = None,
    mirror: Mirror | None = None,
) -> list[tuple[Cell, str]]:
    """Train every cell that has no result; returns those that ended without one, with the reason.

    Afterwards ``cell_path(out, cell)`` holds the config.json, metrics.jsonl and result.json of each run: nothing else
    is needed of it.
    """
    todo = []
    for cell in cells:
        result = result_of(cell, out)
        if result is None:
            todo.append(cell)
        else:
            watch.found(cell, result)
    places = [mirror and mirror.remote.below(run_folder(cell)) for cell in todo]
    tasks = [Task(cell.run, cell_path(out, cell), place, flags()) for cell, place in zip(todo, places, strict=True)]
    failures: list[tuple[Cell, str]] = []

    def started(number: int) -> None:
        watch.started(todo[number])

    def ended(number: int, outcome: Outcome) -> None:
        cell = todo[number]
        stop_unless_over(cell, outcome)
        if outcome.kind == "diverged":
            failures.append((cell, outcome.text))
        if mirror is not None:
            fetch_run(mirror, run_folder(cell))
        result = result_of(cell, out)
        if outcome.kind == "done" and result is None:
            raise GradsieveError(
                f"{cell.label}: its worker has finished it, but {cell_path(out, cell)} has no result here. "
                f"{argument('out')} must lie on a file system that all nodes of the cluster share."
            )
        watch.finished(cell, result, outcome.text)

    if tasks:
        run_tasks(tasks, jobs, cluster, started, ended)
    return failures


def run_tasks(
    tasks: Sequence[Task],
    jobs: int | None,
    cluster: Cluster | None,
    started: Callable[[int], None],
    ended: Callable[[int, Outcome], None],
) -> None:
    """Train tasks, told by number when they start and end: on a cluster, one by one, or several at a time."""
    if cluster is not None:
        run_on_ray(tasks, cluster, jobs, started, ended)
    elif jobs in (None, 1):
        for number, task in enumerate(tasks):
            started(number)
            ended(number, attempt(task))
    else:
        run_in_workers(tasks, jobs, started, ended)


def stop_unless_over(cell: Cell, outcome: Outcome) -> None:
    """Stop the grid if a run was stopped, or failed in a way in which others would fail as well."""
    if outcome.kind == "stopped":
        raise Interrupted(f"{cell.label} {outcome.text}")
    if outcome.kind in ("error", "crash"):
        kept = "Finished runs are kept: once this is mended, try again, and it goes on."
        raise GradsieveError(f"{cell.label}: {outcome.text} {kept}")


def check_mirrored(cells: Sequence[Cell], mirror: Mirror) -> None:
    """Refuse an address for runs on CelebA's features, which the grid makes in its own folder."""
    if any(cell.run.data == FEATURES for cell in cells):
        raise RunFolderError(
            f"{mirror.remote.url} is an address, but CelebA's features are made in the folder of the grid, where every "
            f"run reads them. Choose a folder as {argument('out')}, and copy the grid afterwards."
        )


def check_jobs(name: str, jobs: int | None, cluster: Cluster | None = None) -> None:
    """Refuse less than one run at a time, and more than one if the experiment measures time."""
    if jobs is not None and jobs < 1:
        raise InputError(f"{argument('jobs')} is {jobs}, but at least one run must be at work.")
    beside = jobs not in (None, 1) or (cluster is not None and jobs is None)
    if beside and any(EXPERIMENTS[part].metric == "epoch_seconds" for part in PARTS.get(name, ())):
        raise InputError(
            f"{name} measures time, which runs beside each other take from each other. Give {argument('jobs', 1)}."
        )


class DryRun(NamedTuple):
    """What a grid would train, and how long that would take."""

    cells: list[Cell]
    left: list[Cell]  # those that are not finished
    expected: Estimate  # for these, one at a time
    jobs: int
    makes_features: bool

    @property
    def seconds(self) -> float | None:
        total = self.expected.total
        return None if total is None else total / max(1, min(self.jobs, len(self.left)))

    def to_json(self) -> dict[str, Any]:
        left = {cell.folder for cell in self.left}
        names = ("row", "method", "variant", "seed", "folder")
        runs = [
            {**{name: getattr(cell, name) for name in names}, "finished": cell.folder not in left}
            for cell in self.cells
        ]
        return {"runs": runs, "left": len(left), "seconds": self.seconds, "basis": self.expected.basis}

    def lines(self) -> Iterator[str]:
        left = {cell.folder for cell in self.left}
        for cell in self.cells:
            state = "to run" if cell.folder in left else "finished"
            yield f"{cell.label:40} {cell.run.epochs} epochs   {state}"
        if self.makes_features:
            yield "CelebA's features are made first, in minutes that the estimate leaves out."
        runs = f"Runs: {len(self.cells)}, to run: {len(left)}"
        if not left:
            yield f"{runs}."
        elif self.seconds is None:
            yield f"{runs}; how long is unknown ({self.expected.basis})."
        else:
            together = "" if self.jobs == 1 else " if they do not slow each other down"
            jobs = argument("jobs", self.jobs)
            yield f"{runs}; about {in_words(self.seconds)} with {jobs}{together}, by {self.expected.basis}."


def dry_run(name: str, scope: Scope, out: Path, jobs: int | None = None, cluster: Cluster | None = None) -> DryRun:
    """What would be trained, and how long that will take."""
    check_jobs(name, jobs, cluster)
    cells = plan(name, scope, out)
    is_ours(out, scope)  # raises if it holds anything else
    results = [(cell, result_of(cell, out)) for cell in cells]
    left = [cell for cell, result in results if result is None]
    finished = [(cell, result["seconds"]) for cell, result in results if result is not None]
    makes_features = any(cell.run.data == FEATURES for cell in left) and not (out / "features" / ABOUT).exists()
    return DryRun(cells, left, estimate(left, finished, choose_device(scope.device).type), jobs or 1, makes_features)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM, as sent at a time limit, like Ctrl-C: the grid saves and stops."""
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
