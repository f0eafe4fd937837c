"""An audit in the terminal: a sentence, the classes or the kinds of error, and the most suspect rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gradsieve.audit.result import Audit

MOST_OUTPUTS = 4  # with more, given and suggested targets are too wide for a terminal
ROWS = 10  # most suspect rows shown
CONFUSED = 3  # suggested classes shown for each class
LONG = "fold"  # over several lines: of long codes and paths, an ellipsis would hide what tells them apart


def audit_table(audit: Audit) -> Group:
    """What ``gradsieve audit`` prints."""
    return Group(*parts(audit))


def parts(audit: Audit) -> Iterator[Table | Text]:
    flagged = int(audit.flagged.sum())
    share = flagged / max(1, len(audit))
    yield Text(f"{audit.run}: {flagged} of {len(audit)} rows flagged ({share:.1%}): {audit.rate_source}", style="bold")
    yield from (Text(f"warning: {warning}", style="yellow") for warning in audit.warnings)
    yield Text("")
    if audit.task == "classification":
        yield class_table(audit)
        for warning in (each["warning"] for each in audit.by_class() if each["warning"]):
            yield Text(f"warning: {warning}", style="yellow")
    else:
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


def row_table(audit: Audit) -> Table:
    """The most suspect rows."""
    found = audit.most_suspect(ROWS)
    wide = ("given ", "suggested ") if len(audit.names) > MOST_OUTPUTS and audit.task == "regression" else ()
    names = [
        name for name in found if name not in ("rank", "flagged", "mean_score") and not name.startswith(wide or "\0")
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", title="most suspect rows", title_justify="left")
    for name in names:
        is_text = found[name].dtype == object
        table.add_column(Text(name), justify="left" if is_text else "right", overflow=LONG if is_text else "ellipsis")
    for place in range(len(found["row"])):
        table.add_row(*(Text(cell(found[name][place])) for name in names))  # Text: names may look like markup
    return table


def cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def named(first: str, columns: list[str]) -> Table:
    """A table of numbers with a name before each row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow=LONG)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
