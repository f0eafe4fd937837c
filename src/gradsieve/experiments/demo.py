"""The demo: what wrong targets cost plain training, and how much of it trimming recovers, on two small tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsieve.report.curves import draw_curves
from gradsieve.training.files import write_json
from gradsieve.training.loop import train
from gradsieve.training.result import Result
from gradsieve.training.run import Run, make_run

METHODS = ("standard", "prl-l", "co-prl-l")
CLEAN = "clean targets"


@dataclass(frozen=True)
class Task:
    """A data set with a corruption. The drop rate is a bit above the rate: a batch may hold more than its share."""

    title: str
    data: str
    corruption: str
    rate: float
    drop_rate: float


TASKS = (
    Task("digits, 40 % wrong", "digits", "symmetric", 0.4, 0.45),
    Task("landmarks, 30 % wrong", "landmarks", "linadv", 0.3, 0.35),
)


def demo_runs(task: Task, seed: int) -> dict[str, Run]:
    """The runs of one task by the name that the table gives them."""
    corrupted = {
        method: make_run(
            task.data, method, corruption=task.corruption, rate=task.rate, drop_rate=task.drop_rate, seed=seed
        )
        for method in METHODS
    }
    return {**corrupted, CLEAN: make_run(task.data, "standard", seed=seed)}


def recovered(standard: float, robust: float, clean: float) -> float:
    """The share of what plain training lost to the corruption that a method got back.

    An R2 of plain training below 0 counts as 0: otherwise the worse it diverged, the better the method would look.
    """
    lost_from = max(standard, 0.0)
    return (robust - lost_from) / (clean - lost_from)


def run_demo(out: Path, seed: int = 0) -> list[dict[str, Any]]:
    """Train all runs that are not finished, print the table, and save it and the curves."""
    records, panels = [], {}
    for task in TASKS:
        results = {
            name: train(run, out / f"seed{seed}" / f"{task.data}-{name.replace(' ', '-')}", resume=True, show=True)
            for name, run in demo_runs(task, seed).items()
        }
        records += [row(task, name, results) for name in results]
        panels[f"{task.title} ({results[CLEAN].metric})"] = {
            name: [record["test"] for record in r.history] for name, r in results.items()
        }
    write_json(out / "table.json", records)
    print_table(records)
    draw_curves(panels, out / "curves.png")
    print(f"curves: {out / 'curves.png'}   runs: {out / f'seed{seed}'}")
    return records


def row(task: Task, name: str, results: dict[str, Result]) -> dict[str, Any]:
    """One line of the table."""
    result, standard, clean = results[name], results["standard"].last, results[CLEAN].last
    return {
        "task": task.title,
        "method": name,
        "metric": result.metric,
        "test": result.last,
        "recovered": None if name in ("standard", CLEAN) else recovered(standard, result.last, clean),
        "purity": result.purity,
        "seconds": result.summary["seconds"],
    }


def print_table(records: list[dict[str, Any]]) -> None:
    """Print the table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    for column in ("task", "trained with", "metric", "test", "recovered", "purity", "seconds"):
        is_text = column in ("task", "trained with", "metric")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for record in records:
        table.add_row(
            record["task"] if record["method"] == METHODS[0] else "",
            record["method"],
            record["metric"],
            f"{record['test']:.3f}",
            "" if record["recovered"] is None else f"{record['recovered']:.0%}",
            f"{record['purity']:.3f}",
            f"{record['seconds']:.1f}",
            end_section=record["method"] == CLEAN,
        )
    Console().print(table)
    print("test: on clean rows.  recovered: of what standard lost to the wrong targets (R2 from 0).")
    print("purity: share of right targets among the rows trained on.")
