"""Tables of records in Markdown, the paper's figures above ours, and pictures of test curves."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from gradsieve.experiments.experiment import EXPERIMENTS, Experiment, Metric, column_label
from gradsieve.experiments.records import Record, departures
from gradsieve.report.bands import draw_bands

Column = tuple[str, str]  # method, variant
Group = tuple[str, int, str]  # preset, epochs, departures
SCALE = {"accuracy": (100.0, 2), "r2": (1.0, 3), "epoch_seconds": (1.0, 2)}  # factor and digits of a printed figure


def report_page(name: str, records: Sequence[Record], pictures: Iterable[str], *, blanks: bool = False) -> str:
    """All records of an experiment. ``blanks``: also show the rows and methods that have no runs."""
    experiment = EXPERIMENTS[name]
    is_the_papers = any(record["row"] in experiment.rows for record in records)
    parts = [f"## {experiment.title}" if is_the_papers else f"## {name}, on other data"]
    for group in sorted(set(map(group_of, records))):
        own = [record for record in records if group_of(record) == group]
        parts += [f"### {group_title(experiment, group, own)}", table(experiment, own, blanks)]
        parts += [line for line in (best_epochs(experiment, own), provenance(own)) if line]
    parts += [f"![Test curves of {name}: mean and spread over the seeds]({picture})" for picture in pictures]
    return "\n\n".join(parts) + "\n"


def group_of(record: Record) -> Group:
    """The key of runs that share a table: the same preset, epochs, model options and images."""
    return record["preset"], record["epochs"], departures(record)


def group_title(experiment: Experiment, group: Group, records: Iterable[Record]) -> str:
    """What the runs have in common, with a note if the epochs or the model were set by hand."""
    preset, epochs, other = group
    chosen = any("--epochs" in record["command"] and record["epochs"] != experiment.epochs for record in records)
    title = f"Preset {preset}, {epochs} epochs" + (f", {other}" if other else "")
    return f"{title} (set by hand)" if chosen or other else title


def table(experiment: Experiment, records: Sequence[Record], blanks: bool) -> str:
    """A few lines per row: the paper's figures, and ours below."""
    columns = columns_of(experiment, records, blanks)
    lines = [["row", "", *(column_label(*column) for column in columns)], ["---"] * (len(columns) + 2)]
    for row in rows_of(experiment, records, blanks):
        printed = [experiment.paper.get((row, *column), "") for column in columns]
        cells = [[each for each in records if is_at(each, row, column)] for column in columns]
        body = {"paper": printed} if any(printed) else {}
        if experiment.metric == "epoch_seconds":
            body |= time_lines(printed, cells, [method for method, _ in columns])
        else:
            body |= metric_lines(experiment, cells)
        own = [["", name, *texts] for name, texts in body.items()]
        own[0][0] = row
        lines += own
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def metric_lines(experiment: Experiment, cells: Sequence[Sequence[Record]]) -> dict[str, list[str]]:
    """Our figures: the mean of the last ten epochs, as in the paper, and the last epoch alone."""
    lines = {
        "gradsieve": [figure(cell, "last10_mean", experiment.metric) for cell in cells],
        "last epoch": [figure(cell, "last", experiment.metric) for cell in cells],
    }
    return lines if any(cells) else {"gradsieve": lines["gradsieve"]}  # if nothing ran, one blank line is enough


def time_lines(
    printed: Sequence[str], cells: Sequence[Sequence[Record]], methods: Sequence[str]
) -> dict[str, list[str]]:
    """Seconds, and their ratios to plain training's, which can be compared between devices."""
    plain = methods.index("standard") if "standard" in methods else None
    theirs = [float(text) if text else None for text in printed]
    ours = [
        statistics.fmean(record["epoch_seconds"] for record in cell)
        if cell and all(record.get("epoch_seconds") for record in cell)
        else None
        for cell in cells
    ]
    return {
        "gradsieve": [figure(cell, "epoch_seconds", "epoch_seconds") for cell in cells],
        **({"paper, ratio": ratios(theirs, plain)} if any(theirs) else {}),
        "gradsieve, ratio": ratios(ours, plain),
    }


def ratios(seconds: Sequence[float | None], plain: int | None) -> list[str]:
    """Each time as a multiple of the one at ``plain``."""
    base = None if plain is None else seconds[plain]
    return ["" if each is None or not base else f"{each / base:.2f}" for each in seconds]


def figure(records: Sequence[Record], measure: str, metric: Metric) -> str:
    """Mean over the seeds ± their standard deviation (number of seeds); blank without records."""
    values = [record.get(measure) for record in records]
    if not values:
        return ""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return "not a number"
    scale, digits = SCALE[metric]
    mean = f"{scale * statistics.fmean(numbers):.{digits}f}"
    spread = f"±{scale * statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{mean}{spread} ({len(numbers)})"


def is_at(record: Record, row: str, column: Column) -> bool:
    return (record["row"], record["method"], record.get("variant", "")) == (row, *column)


def columns_of(experiment: Experiment, records: Sequence[Record], blanks: bool) -> list[Column]:
    """The experiment's columns, then those that were run beyond the paper."""
    ran = dict.fromkeys((record["method"], record.get("variant", "")) for record in records)
    own = [(method, variant.name) for method in experiment.methods for variant in experiment.variants]
    return [column for column in own if blanks or column in ran] + [column for column in ran if column not in own]


def rows_of(experiment: Experiment, records: Sequence[Record], blanks: bool) -> list[str]:
    ran = dict.fromkeys(record["row"] for record in records)
    return [row for row in experiment.rows if blanks or row in ran] + [row for row in ran if row not in experiment.rows]


def best_epochs(experiment: Experiment, records: Sequence[Record]) -> str:
    """What plain training would reach if it were stopped at the epoch with the best test figure."""
    if experiment.metric == "epoch_seconds":
        return ""
    plain = [record for record in records if record["method"] == "standard" and record.get("best") is not None]
    scale, digits = SCALE[experiment.metric]
    by_row: dict[str, list[float]] = {}
    for record in plain:
        by_row.setdefault(record["row"], []).append(scale * record["best"])
    each = ", ".join(f"{row} {statistics.fmean(values):.{digits}f}" for row, values in by_row.items())
    return f"Stopped at its best epoch by the test labels, standard would reach: {each}." if each else ""


def provenance(records: Sequence[Record]) -> str:
    """Where the figures come from: runs, seeds, devices, commits and time."""
    seeds = ", ".join(map(str, sorted({record["seed"] for record in records})))
    devices = "; ".join(
        dict.fromkeys(
            ", ".join(filter(None, [record["device"], with_name("torch", record), record.get("precision")]))
            for record in records
        )
    )
    commits = ", ".join(dict.fromkeys(record["commit"] or "unknown" for record in records))
    seconds = sum(record["seconds"] for record in records)
    return f"Runs: {len(records)}; seeds: {seeds}; {devices}; commit {commits}; {seconds:,.0f} s in all."


def with_name(name: str, record: Record) -> str:
    return f"{name} {record[name]}" if record.get(name) else ""


def pictures_of(name: str, records: Sequence[Record], prefix: str = "") -> dict[str, list[Record]]:
    """The pictures of an experiment's curves, each with its records: one per group."""
    if EXPERIMENTS[name].metric == "epoch_seconds":
        return {}
    pictures: dict[str, list[Record]] = {}
    for record in records:
        if record.get("curve"):
            words = re.findall(r"[\w.]+", "-".join(map(str, group_of(record))))
            pictures.setdefault(f"{prefix}{name}-{'-'.join(words)}.png", []).append(record)
    return pictures


def draw_records(name: str, records: Sequence[Record], folder: Path, prefix: str = "") -> list[str]:
    """Draw the pictures into ``folder``, and return the names of the files."""
    pictures = pictures_of(name, records, prefix)
    for picture, own in pictures.items():
        panels: dict[str, dict[str, list]] = {}
        for record in own:
            label = column_label(record["method"], record.get("variant", ""))
            panels.setdefault(record["row"], {}).setdefault(label, []).append(record["curve"])
        draw_bands(panels, folder / picture)
    return list(pictures)
