"""The display while a grid runs: a live table in a terminal, a line per run elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gradsieve.experiments.estimate import estimate, in_words
from gradsieve.experiments.experiment import column_label
from gradsieve.experiments.grid import Cell, cell_path

if TYPE_CHECKING:
    from rich.table import Table

RECENT = 8  # the last ended runs, which the live table shows


class Watch:
    """Shows nothing, but keeps count of ended and running runs, for the time left."""

    def __init__(self, cells: Sequence[Cell], out: Path, jobs: int, device: str) -> None:
        self.cells, self.out, self.jobs, self.device = cells, out, jobs, device
        self.ended: list[tuple[Cell, dict[str, Any] | None]] = []  # with their results, None if there is none
        self.at_work: dict[str, tuple[Cell, float]] = {}  # running runs and when they started, by folder

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def say(self, text: str) -> None:
        """Something that is not about a run."""

    def found(self, cell: Cell, result: dict[str, Any]) -> None:
        """A run was finished before."""
        self.ended.append((cell, result))

    def started(self, cell: Cell) -> None:
        self.at_work[cell.folder] = cell, time.monotonic()

    def finished(self, cell: Cell, result: dict[str, Any] | None, reason: str = "") -> None:
        """A run has ended, with a result or with a reason why not."""
        self.at_work.pop(cell.folder, None)
        self.ended.append((cell, result))

    def seconds_left(self) -> float | None:
        """Estimated from the times of ended runs, less the share that running ones have done."""
        over = {cell.folder for cell, _ in self.ended}
        left = [cell for cell in self.cells if cell.folder not in over]
        known = [(cell, result["seconds"]) for cell, result in self.ended if result]
        expected = estimate(left, known, self.device).seconds
        total = 0.0
        for cell, seconds in zip(left, expected, strict=True):
            if seconds is None:
                return None
            total += seconds * (1 - self.share_done(cell))
        return total / max(1, min(self.jobs, len(left)))

    def share_done(self, cell: Cell) -> float:
        """The share of a run's epochs that its metrics.jsonl has."""
        try:
            metrics = cell_path(self.out, cell) / "metrics.jsonl"
            return len(metrics.read_bytes().splitlines()) / cell.run.epochs
        except OSError:
            return 0.0


class Lines(Watch):
    """A line per run, for logs."""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def finished(self, cell: Cell, result: dict[str, Any] | None, reason: str = "") -> None:
        super().finished(cell, result, reason)
        self.say(
            f"[{len(self.ended)}/{len(self.cells)}] {cell.label}: {described(result, reason)}, "
            f"time left {in_words(self.seconds_left())}"
        )


class LiveTable(Watch):
    """A live table of the running runs and the last ended ones, with the time left."""

    def __init__(self, cells: Sequence[Cell], out: Path, jobs: int, device: str) -> None:
        from rich.live import Live

        super().__init__(cells, out, jobs, device)
        self.reasons: dict[str, str] = {}
        self.live = Live(get_renderable=self.table, refresh_per_second=2)

    def __enter__(self) -> LiveTable:
        self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        self.live.console.print(text)

    def finished(self, cell: Cell, result: dict[str, Any] | None, reason: str = "") -> None:
        super().finished(cell, result, reason)
        self.reasons[cell.folder] = reason

    def table(self) -> Table:
        from rich import box
        from rich.table import Table

        title = f"{len(self.ended)} of {len(self.cells)} runs, time left {in_words(self.seconds_left())}"
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
        for column in ("row", "method", "seed", "now"):
            table.add_column(column)
        for cell, result in list(self.ended)[-RECENT:]:
            table.add_row(*place(cell), described(result, self.reasons.get(cell.folder, "")))
        for cell, since in list(self.at_work.values()):
            now = f"epoch {round(self.share_done(cell) * cell.run.epochs)}/{cell.run.epochs}"
            table.add_row(*place(cell), f"{now}, {time.monotonic() - since:.0f} s", style="bold")
        return table


def place(cell: Cell) -> tuple[str, str, str]:
    return cell.row, column_label(cell.method, cell.variant), str(cell.seed)


def described(result: dict[str, Any] | None, reason: str = "") -> str:
    """How a run ended, in a few words."""
    if result is None:
        return f"no result ({reason.split('.')[0]})"
    mean = result["last10_mean"]
    figure = "not a number" if mean is None else f"{mean:.4f}"
    return f"{result['metric']} {figure} in {result['seconds']:.0f} s"


def make_watch(show: bool) -> Callable[..., Watch]:
    """The display that suits where the output goes."""
    if not show:
        return Watch
    return LiveTable if sys.stdout.isatty() else Lines
