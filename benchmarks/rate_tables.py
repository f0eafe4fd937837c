"""The cells of ``benchmarks/rate.py`` as tables: the criteria, and "auto" beside the true rate and Standard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Line = dict[str, Any]

NEAR = {"classification": 0.01, "regression": 0.02}  # of accuracy, of R2
HARM = {"classification": 0.02, "regression": 0.02}
CLEAN_HARM = {"classification": 0.005, "regression": 0.01}
FLOOR = -1.0  # an R2 below it counts as this


def markdown(lines: list[Line]) -> Iterator[str]:
    """For each task the criteria, "auto" in sum, and "auto" set by set; then the cells in which it failed."""
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        groups = {
            "clean": [line for line in own if line["rate"] == 0],
            "to 0.3": [line for line in own if 0 < line["rate"] <= 0.3],
            "above": [line for line in own if line["rate"] > 0.3],
        }
        groups = {name: group for name, group in groups.items() if group}
        unit, near = ("points", "1") if task == "classification" else ("R2", "0.02")
        seeds = ", ".join(str(seed) for seed in sorted({line["seed"] for line in own}))
        counts = ", ".join(f"{name} {len(group)}" for name, group in groups.items())
        yield f"**{task.capitalize()}**, seeds {seeds}. Cells: {counts}. Regret ({unit}): mean, within {near}, worst."
        yield ""
        yield from table("criterion", groups, {name: regret(task, name) for name in own[0]["picks"]})
        yield from table(f"{task}: auto", groups, auto_rows(task))
        yield from by_set(task, own)
        yield from failures(task, own)


def table(title: str, groups: dict[str, list[Line]], rows: dict[str, Callable[[list[Line]], str]]) -> Iterator[str]:
    """A row for each function of a group of cells, a column for each group."""
    yield from head(title, *groups)
    for name, text in rows.items():
        yield f"| {name} | {' | '.join(text(group) for group in groups.values())} |"
    yield ""


def head(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"


def percent(task: str) -> int:
    return 100 if task == "classification" else 1


def figures(lines: Sequence[Line], name: str) -> NDArray[np.float64]:
    return np.maximum([line[name] for line in lines], FLOOR)


def regret(task: str, name: str) -> Callable[[list[Line]], str]:
    """How far a criterion's pick is below the best of the six."""

    def text(lines: list[Line]) -> str:
        tests = [np.maximum(line["test_of_rate"], FLOOR) for line in lines]
        found = np.array([test.max() - test[line["picks"][name]] for test, line in zip(tests, lines, strict=True)])
        scale = percent(task)
        return f"{scale * found.mean():.3f}, {(found <= NEAR[task]).mean():.0%}, {scale * found.max():.2f}"

    return text


def is_near(lines: Sequence[Line], task: str) -> NDArray[np.bool_]:
    return figures(lines, "auto") >= figures(lines, "known") - NEAR[task]


def is_harmful(lines: Sequence[Line], task: str) -> NDArray[np.bool_]:
    is_clean = np.array([line["rate"] == 0 for line in lines])
    allowed = np.where(is_clean, CLEAN_HARM[task], HARM[task])
    return figures(lines, "auto") < figures(lines, "standard") - allowed


def off(lines: Sequence[Line]) -> NDArray[np.float64]:
    """How far the estimate is from the share of rows that moved."""
    return np.array([line["pick"]["estimate"] - line["moved"] for line in lines])


def auto_rows(task: str) -> dict[str, Callable[[list[Line]], str]]:
    """What "auto" did in a group of cells."""
    scale, points = percent(task), f"{percent(task) * NEAR[task]:g}"

    def worst(against: str) -> Callable[[list[Line]], str]:
        return lambda lines: f"{scale * (figures(lines, 'auto') - figures(lines, against)).min():.3f}"

    names = ("auto", "known", "standard")
    return {
        "mean of auto / true rate / Standard": lambda lines: " / ".join(
            f"{figures(lines, n).mean():.3f}" for n in names
        ),
        "mean without the estimate": lambda lines: f"{figures(lines, 'winner').mean():.3f}",
        f"within {points} of the true rate's run": lambda lines: f"{is_near(lines, task).sum()} of {len(lines)}",
        "worst against the true rate's run": worst("known"),
        "below Standard by more than allowed": lambda lines: f"{is_harmful(lines, task).sum()}",
        "worst against Standard": worst("standard"),
        "estimate: mean error, within 0.05": lambda lines: (
            f"{np.abs(off(lines)).mean():.3f}, {(np.abs(off(lines)) <= 0.05).mean():.0%}"
        ),
        "warned": lambda lines: f"{sum(bool(line['pick']['warning']) for line in lines)}",
    }


def by_set(task: str, lines: list[Line]) -> Iterator[str]:
    """A row for each set."""
    yield from head(
        task, "clean: worst against Standard", "to 0.3: near", "above: near", "harmful", "estimate within 0.05"
    )
    for name in dict.fromkeys(line["data"] for line in lines):
        own = [line for line in lines if line["data"] == name]
        clean = [line for line in own if line["rate"] == 0]
        low, high = (
            [line for line in own if line["rate"] and (line["rate"] > 0.3) == above] for above in (False, True)
        )
        lost = f"{percent(task) * (figures(clean, 'auto') - figures(clean, 'standard')).min():.3f}" if clean else ""
        near = (f"{is_near(group, task).sum()} of {len(group)}" if group else "" for group in (low, high))
        right = f"{(np.abs(off(own)) <= 0.05).sum()} of {len(own)}"
        yield f"| {name} | {lost} | {' | '.join(near)} | {is_harmful(own, task).sum()} | {right} |"
    yield ""


def failures(task: str, lines: list[Line]) -> Iterator[str]:
    """Every cell that is not near the true rate's run, or harmful."""
    failed = [line for line in lines if not is_near([line], task)[0] or is_harmful([line], task)[0]]
    if not failed:
        return
    yield f"{task.capitalize()}: where auto is farther below the true rate's run, or below Standard."
    yield ""
    yield from head("cell", "dropped", "auto", "true rate", "Standard", "warned")
    for line in sorted(failed, key=lambda line: line["auto"] - line["known"]):
        cell = f"{line['data']}, {line['corruption']} {line['rate']:g}, seed {line['seed']}"
        results = " | ".join(f"{line[name]:.3f}" for name in ("auto", "known", "standard"))
        yield f"| {cell} | {line['pick']['rate']:g} | {results} | {'yes' if line['pick']['warning'] else ''} |"
    yield ""


def insert(tables: str, page: Path, mark: str) -> None:
    """Put the tables between the two lines of a page that bear this mark."""
    begin, end = (f"<!-- benchmarks/rate.py {mark}: {word} -->" for word in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no lines {begin} and {end}.")
    page.write_text(f"{before}{begin}\n\n{tables.strip()}\n\n{end}{after}")
