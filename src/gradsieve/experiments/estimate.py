"""How long a grid will take: from its finished runs or, if there are none, from the constants below."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gradsieve.experiments.grid import Cell
from gradsieve.methods import METHODS
from gradsieve.training.run import Run

# Training rows, for an estimate before any data is read.
TRAIN_ROWS = {
    "cifar10": 50_000,
    "cifar100": 50_000,
    "celeba-features": 15_970,  # four fifths of CelebA's test images
    "mnist": 60_000,
    "landmarks": 4000,
    "digits": 1437,
}
# Seconds of a plain step of one network, by model and device: rough, and only those that were measured. Other models
# get no estimate before a run has finished.
STEP_SECONDS = {
    ("cnn9", "cuda"): 0.0022,  # H200: 42 s for 49 epochs of 390 steps of one network, three runs at a time
    ("cnn9", "cpu"): 8.8,  # two cores under other load: median of four steps
    ("mlp", "cpu"): 0.004,  # two cores: docs/performance.md
}


class Estimate(NamedTuple):
    """Seconds of each cell, None where unknown, and what the estimate is based on."""

    seconds: list[float | None]
    basis: str

    @property
    def total(self) -> float | None:
        known = [each for each in self.seconds if each is not None]
        return sum(known) if len(known) == len(self.seconds) else None


def estimate(cells: Sequence[Cell], finished: Iterable[tuple[Cell, float]], device: str) -> Estimate:
    """How long each cell will take. ``finished`` are cells with the seconds they took; ``device`` is cpu or cuda."""
    same_method, same_data = rates(finished)
    bases: dict[str, None] = {}

    def expect(cell: Cell) -> float | None:
        run = cell.run
        epochs = run.epochs * METHODS[run.method].networks
        for table, key in ((same_method, method_key(run)), (same_data, data_key(run))):
            if key in table:
                bases["the seconds of finished runs"] = None
                return table[key] * epochs
        rows, step = TRAIN_ROWS.get(run.data), STEP_SECONDS.get((run.model, device))
        if rows is None or step is None:
            bases[f"nobody has timed {run.model} on {run.data} here: finish a run first"] = None
            return None
        bases[f"a stated {1000 * step:g} ms a step of one {run.model} on {device}"] = None
        return max(1, rows // run.batch_size) * epochs * step

    seconds = [expect(cell) for cell in cells]
    return Estimate(seconds, ", ".join(bases))


def rates(finished: Iterable[tuple[Cell, float]]) -> tuple[Mapping[tuple, float], Mapping[tuple, float]]:
    """Seconds of an epoch of one network, by method and by data alone: medians of the finished runs."""
    by_method: dict[tuple, list[float]] = {}
    by_data: dict[tuple, list[float]] = {}
    for cell, seconds in finished:
        rate = seconds / (cell.run.epochs * METHODS[cell.run.method].networks)
        by_method.setdefault(method_key(cell.run), []).append(rate)
        by_data.setdefault(data_key(cell.run), []).append(rate)
    middle = statistics.median
    return {key: middle(each) for key, each in by_method.items()}, {key: middle(each) for key, each in by_data.items()}


def method_key(run: Run) -> tuple[str, ...]:
    return (*data_key(run), run.method, str(run.method_options))


def data_key(run: Run) -> tuple[str, ...]:
    # CIFAR-10 and CIFAR-100 have equally many images of the same size.
    data = "cifar" if run.data in ("cifar10", "cifar100") else run.data
    return (data, run.model, str(run.model_options))


def in_words(seconds: float | None) -> str:
    """A time in a readable unit."""
    if seconds is None:
        return "unknown"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 100 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
