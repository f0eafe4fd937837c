"""The cells of ``benchmarks/rate.py`` as tables: the criteria, and "auto" beside the true rate and Standard.

A run is a set, a corruption, a rate and a seed. The means over the seeds are judged by the same limits.
"""

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
RIGHT = 0.05  # how far an estimate may be off
FLOOR = -1.0  # an R2 below it counts as this
TRUTH = "moved_by_clean"  # what estimates are compared with: the true rate's run may fail, and then hardly a row moved


def markdown(lines: list[Line]) -> Iterator[str]:
    """For each task what was aimed at, the criteria, "auto" in sum and set by set; then where it failed."""
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        groups, means = by_rate(own), over_seeds(own)
        unit, near = ("points", "1") if task == "classification" else ("R2", "0.02")
        seeds = ", ".join(str(seed) for seed in sorted({line["seed"] for line in own}))
        counts = ", ".join(f"{name} {len(group)}" for name, group in groups.items())
        yield f"**{task.capitalize()}**, seeds {seeds}. Runs: {counts}. Regret ({unit}): mean, within {near}, worst."
        yield ""
        yield from targets(task, own, means)
        yield from table("criterion", groups, {name: regret(task, name) for name in own[0]["picks"]})
        yield from table(f"{task}: auto, single runs", groups, auto_rows(task))
        yield from table(f"{task}: auto, means over the seeds", by_rate(means), auto_rows(task))
        yield from by_set(task, own)
        yield from failures(task, "means over the seeds", means)
        yield from failures(task, "single runs", own)


def by_rate(lines: list[Line]) -> dict[str, list[Line]]:
    """Clean rows, and the two halves of the rates; those that there are."""
    groups = {
        "clean": [line for line in lines if line["rate"] == 0],
        "to 0.3": [line for line in lines if 0 < line["rate"] <= 0.3],
        "above": [line for line in lines if line["rate"] > 0.3],
    }
    return {name: group for name, group in groups.items() if group}


def over_seeds(lines: list[Line]) -> list[Line]:
    """One line for all seeds of a set, a corruption and a rate: the means of their figures."""
    cells: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        cells.setdefault((line["data"], line["corruption"], line["rate"]), []).append(line)
    return [mean_line(group) for group in cells.values()]


def mean_line(lines: list[Line]) -> Line:
    names = ("auto", "known", "standard", "winner", "moved", "moved_by_clean")
    figure = {name: float(figures(lines, name).mean()) for name in names}
    pick = {name: float(np.mean([line["pick"][name] for line in lines])) for name in ("rate", "estimate")}
    warned = sum(bool(line["pick"]["warning"]) for line in lines)
    return (
        lines[0] | figure | {"seed": None, "pick": {**pick, "warning": f"{warned} of {len(lines)}" if warned else ""}}
    )


def targets(task: str, lines: list[Line], means: list[Line]) -> Iterator[str]:
    """What was aimed at, and whether it is reached: by single runs, and by means over the seeds."""
    is_classes = task == "classification"
    near, harm, clean = ("1 point", "2 points", "half a point") if is_classes else ("0.02 R2", "0.02 R2", "0.01 R2")
    counted = "MNIST, but for instance" if is_classes else "the four tables, by a run on clean targets"
    aims: dict[str, Callable[[list[Line]], str]] = {
        f"to 0.3: within {near} of the true rate's run in 19 of 20": lambda own: near_in(task, own, "to 0.3", 0.95),
        f"above: within {near} of it in 8 of 10": lambda own: near_in(task, own, "above", 0.8),
        f"never more than {harm} below Standard": lambda own: most_lost(task, own, HARM),
        f"clean: at most {clean} below Standard": lambda own: most_lost(
            task, by_rate(own).get("clean", []), CLEAN_HARM
        ),
        f"estimate within {RIGHT} ({counted})": lambda own: right_in(task, own),
    }
    if not is_classes:
        aims["the same, by the true rate's run"] = lambda own: right_in(task, own, "moved")
    yield from head(f"{task}: what was aimed at", "single runs", "means over the seeds")
    for name, text in aims.items():
        yield f"| {name} | {text(lines)} | {text(means)} |"
    yield ""


def met(is_met: bool, figure: str) -> str:
    return f"{'met' if is_met else 'missed'}, {figure}"


def near_in(task: str, lines: list[Line], group: str, wanted: float) -> str:
    near = is_near(by_rate(lines).get(group, []), task)
    return met(near.sum() >= wanted * len(near), f"{near.sum()} of {len(near)}") if len(near) else ""


def most_lost(task: str, lines: list[Line], limit: dict[str, float]) -> str:
    if not lines:
        return ""
    gained = figures(lines, "auto") - figures(lines, "standard")
    worse = int((gained < -limit[task]).sum())
    return met(not worse, f"{worse} of {len(lines)} are, the worst {percent(task) * gained.min():.3f}")


def right_in(task: str, lines: list[Line], truth: str = TRUTH) -> str:
    counted = [line for line in lines if line["data"] != "landmarks"]
    if task == "classification":
        counted = [line for line in lines if line["data"].startswith("mnist") and line["corruption"] != "instance"]
    right = np.abs(off(counted, truth)) <= RIGHT
    return met(bool(right.all()), f"{right.sum()} of {len(right)}") if counted else ""


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


def off(lines: Sequence[Line], truth: str = TRUTH) -> NDArray[np.float64]:
    """How far the estimate is from the share of rows that moved."""
    return np.array([line["pick"]["estimate"] - line[truth] for line in lines])


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
            f"{np.abs(off(lines)).mean():.3f}, {(np.abs(off(lines)) <= RIGHT).mean():.0%}"
        ),
        "warned": lambda lines: f"{sum(bool(line['pick']['warning']) for line in lines)}",
    }


def by_set(task: str, lines: list[Line]) -> Iterator[str]:
    """A row for each set, of single runs."""
    yield from head(
        task, "clean: worst against Standard", "to 0.3: near", "above: near", "harmful", "estimate within 0.05"
    )
    for name in dict.fromkeys(line["data"] for line in lines):
        own = [line for line in lines if line["data"] == name]
        groups = by_rate(own)
        clean = groups.get("clean", [])
        lost = f"{percent(task) * (figures(clean, 'auto') - figures(clean, 'standard')).min():.3f}" if clean else ""
        low, high = (is_near(groups.get(group, []), task) for group in ("to 0.3", "above"))
        near = f"{low.sum()} of {len(low)} | {high.sum()} of {len(high)}"
        right = f"{(np.abs(off(own)) <= RIGHT).sum()} of {len(own)}"
        yield f"| {name} | {lost} | {near} | {is_harmful(own, task).sum()} | {right} |"
    yield ""


def failures(task: str, title: str, lines: list[Line]) -> Iterator[str]:
    """Every line that is not near the true rate's run, or harmful."""
    failed = [line for line in lines if not is_near([line], task)[0] or is_harmful([line], task)[0]]
    if not failed:
        return
    yield f"{task.capitalize()}, {title}: where auto is farther below the true rate's run, or below Standard."
    yield ""
    yield from head("cell", "dropped", "auto", "true rate", "Standard", "warned")
    for line in sorted(failed, key=lambda line: line["auto"] - line["known"]):
        seed = "" if line["seed"] is None else f", seed {line['seed']}"
        cell = f"{line['data']}, {line['corruption']} {line['rate']:g}{seed}"
        results = " | ".join(f"{line[name]:.3f}" for name in ("auto", "known", "standard"))
        warning = line["pick"]["warning"]
        warned = warning if line["seed"] is None else "yes" if warning else ""
        yield f"| {cell} | {line['pick']['rate']:.2g} | {results} | {warned} |"
    yield ""


def insert(tables: str, page: Path, mark: str) -> None:
    """Put the tables between the two lines of a page that bear this mark."""
    begin, end = (f"<!-- benchmarks/rate.py {mark}: {word} -->" for word in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no lines {begin} and {end}.")
    page.write_text(f"{before}{begin}\n\n{tables.strip()}\n\n{end}{after}")
