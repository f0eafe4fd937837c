"""The display while a run trains: a live bar in a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """Shows nothing, the default."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def step(self, done: int, total: int) -> None:
        """``done`` of the run's ``total`` steps are done."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch has ended with this record."""

    def note(self, text: str) -> None:
        """Something to know about the run."""


class Lines(Progress):
    """Plain lines for logs, at most one in ``every`` seconds."""

    def __init__(self, label: str, epochs: int, every: float = 5.0) -> None:
        self.label, self.epochs, self.every = label, epochs, every
        self.last = -float("inf")

    def epoch(self, record: dict[str, Any]) -> None:
        if time.monotonic() - self.last >= self.every or record["epoch"] == self.epochs:
            self.last = time.monotonic()
            print(f"{self.label}  {describe(record, self.epochs)}", flush=True)

    def note(self, text: str) -> None:
        print(f"{self.label}  {text}", flush=True)


class Bar(Progress):
    """A live bar with the time left."""

    def __init__(self, label: str, epochs: int) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.epochs = epochs
        self.bar = RichProgress(
            TextColumn("{task.fields[label]}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}")
        )
        self.task = self.bar.add_task("", total=None, label=label, now="")

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def step(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)

    def epoch(self, record: dict[str, Any]) -> None:
        self.bar.update(self.task, now=describe(record, self.epochs))

    def note(self, text: str) -> None:
        self.bar.console.print(text, highlight=False)


def describe(record: dict[str, Any], epochs: int) -> str:
    """An epoch in one line."""
    return (
        f"epoch {record['epoch']}/{epochs}  {record['metric']} {record['test']:.4f}  "
        f"purity {record['purity']:.3f}  loss {record['loss']:.4f}"
    )


def make_progress(show: bool, label: str, epochs: int) -> Progress:
    """The display that suits where the output goes."""
    if not show:
        return Progress()
    return Bar(label, epochs) if sys.stdout.isatty() else Lines(label, epochs)
