"""An audit in the terminal: a sentence, the classes or the kinds of error, and the most suspect rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gradsieve.audit.result import Audit

MOST_WHOLE = 1e12  # larger numbers have an exponent
MOST_WIDTH = 10_000  # columns, to measure how wide a table would be
ROWS = 10  # most suspect rows shown
CONFUSED = 3  # suggested classes shown for each class
LONG = "fold"  # over several lines: of long codes and paths, an ellipsis would hide what tells them apart


def audit_table(audit: Audit) -> Group:
    """What ``gradsieve audit`` prints."""
    return Group(*parts(audit))


def parts(audit: Audit) -> Iterator[Table | Text | FirstThatFits]:
    flagged = int(audit.flagged.sum())
    share = flagged / max(1, len(audit))
    yield Text(f"{audit.run}: {flagged} of {len(audit)} rows flagged ({share:.1%}): {audit.rate_source}", style="bold")
    yield from (Text(f"warning: {warning}", style="yellow") for warning in audit.warnings)
    yield Text("")
    if audit.task == "classification":
        yield class_table(audit)
        for warning in (each["warning"] for each in audit.by_class() if each["warning"]):
            yield Text(f"warning: {warning}", style="yellow")
        yield Text("")
    elif flagged:
        summary = audit.summary()
        yield pairs_table("kind of error", summary["kinds"])
        if len(audit.names) > 1:
            yield Text("")
            yield pairs_table("output that is off", summary["off"])
        yield Text("")
    yield row_table(audit)


def class_table(audit: Audit) -> Table:
    table = named("class", ["rows", "kept", "flagged"])
    table.add_column("more likely", overflow=LONG)
    for each in audit.by_class():
        likely = list(each["suggested"].items())[:CONFUSED]
        words = ", ".join(f"{name} ({times})" for name, times in likely)
        numbers = (str(each["rows"]), f"{each['kept_share']:.0%}", str(each["flagged"]))
        table.add_row(Text(each["name"]), *numbers, Text(words))
    return table


def pairs_table(title: str, times: dict[str, int]) -> Table:
    table = named(title, ["flagged rows"])
    for name, count in times.items():
        table.add_row(Text(name), str(count))
    return table


@dataclass(frozen=True)
class FirstThatFits:
    """The first of several tables for which the console is wide enough, else the last."""

    tables: Sequence[Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        wide = options.update(width=MOST_WIDTH)
        fitting = (each for each in self.tables if Measurement.get(console, wide, each).maximum <= options.max_width)
        yield next(fitting, self.tables[-1])


def row_table(audit: Audit) -> FirstThatFits:
    """The most suspect rows; in a narrow console without what says least about them."""
    found = audit.most_suspect(ROWS)
    found = {name: found[name] for name in found if name not in ("rank", "flagged", "mean_score")}
    less = {name: found[name] for name in found if name not in ("seen", "dropped")}
    of_each = ("given ", "suggested ")  # with several targets; the column off then names what to look at
    least = {name: less[name] for name in less if audit.task != "regression" or not name.startswith(of_each)}
    return FirstThatFits([table_of(each) for each in (found, less, least)])


def table_of(columns: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title="most suspect rows", title_justify="left")
    for name, values in columns.items():
        is_text = values.dtype == object
        table.add_column(Text(name), justify="left" if is_text else "right", overflow=LONG if is_text else "ellipsis")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(Text(cell(value)) for value in row))  # Text: names may look like markup
    return table


def cell(value: Any) -> str:
    """Four digits, but all before the point of a large number: a price reads as 452600 and not as 4.526e+05."""
    if not isinstance(value, float | np.floating):
        return str(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < MOST_WHOLE else f"{value:.4g}"


def named(first: str, columns: list[str]) -> Table:
    """A table of numbers with a name before each row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow=LONG)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
