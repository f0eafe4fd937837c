"""CSV that is safe to open: no spreadsheet takes its text for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from gradsieve.data.table import finite_number

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(value: Any) -> str:
    """A cell as CSV has it: a number stays a number, and text that would be a formula gets an apostrophe in front.

    So does such text that begins with an apostrophe of its own, so that `unquoted` can tell the two apart.
    """
    if isinstance(value, float):
        return repr(float(value)) if value == value else ""
    text = str(value)
    if text.lstrip("'").startswith(FORMULA) and finite_number(text) is None:
        return f"'{text}"
    return text


def unquoted(text: str) -> str:
    """The text of a cell without the apostrophe that `safe_cell` put in front."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(FORMULA) else text


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and rows as CSV."""
    return csv_lines([header]) + csv_lines(rows)


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as lines of CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([safe_cell(value) for value in row] for row in rows)
    return file.getvalue()
