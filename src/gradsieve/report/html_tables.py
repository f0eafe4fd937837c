"""Tables of a report, as markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradsieve.report.figures import finite
from gradsieve.report.markup import Child, Html, tag

LONG = 40  # characters: a column with a longer text wraps its lines


@dataclass(frozen=True)
class Column:
    """A column: its header, its cells, and the numbers to sort it by if it is numeric."""

    title: str
    cells: Sequence[Child]
    numbers: Sequence[float | None] | None = None


def text_column(title: str, values: Sequence[Any]) -> Column:
    """A column of text or markup, shown as it is."""
    return Column(title, values)


def number_column(title: str, values: Sequence[Any], shown: str = ".4g") -> Column:
    """A column of numbers in the format ``shown``; values that are not finite numbers stay empty."""
    numbers = [finite(value) for value in values]
    return Column(title, ["" if value is None else format(value, shown) for value in numbers], numbers)


def any_column(title: str, values: Sequence[Any], shown: str = ".4g") -> Column:
    """A column of numbers, of yes and no, or of text, depending on the values."""
    there = [value for value in values if value is not None and value != ""]
    if there and all(isinstance(value, bool) for value in there):
        return text_column(title, ["yes" if value else "no" for value in values])
    if there and all(isinstance(value, int | float) for value in there):
        whole = all(isinstance(value, int) for value in there)
        return number_column(title, values, ".0f" if whole else shown)
    return text_column(title, ["" if value is None else str(value) for value in values])


def table(caption: str, columns: Sequence[Column], *, name: str | None = None, heads_rows: bool = False) -> Html:
    """A table that scrolls in its own frame. A ``name`` makes it sortable, ``heads_rows`` its first column headers."""
    head = tag("tr", (header(column, name is not None) for column in columns))
    length = len(columns[0].cells) if columns else 0
    rows = (
        tag("tr", (data_cell(column, row, heads_rows and not place) for place, column in enumerate(columns)))
        for row in range(length)
    )
    kind = "sortable" if name is not None else None
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", rows), class_=kind, id=name)
    return tag("div", whole, class_="wide", tabindex=0, role="region", aria_label=caption)


def header(column: Column, is_sortable: bool) -> Html:
    words = tag("button", column.title, type="button") if is_sortable and column.title else column.title
    return tag("th", words, scope="col", class_=alignment(column))


def data_cell(column: Column, row: int, is_header: bool) -> Html:
    value = None if column.numbers is None else column.numbers[row]
    key = repr(value) if value is not None else ("NaN" if column.numbers is not None else None)
    if is_header:
        return tag("th", column.cells[row], scope="row", data_value=key)
    return tag("td", column.cells[row], class_=alignment(column), data_value=key)


def alignment(column: Column) -> str | None:
    """The CSS class of a column: numbers are set to the right, long texts are wrapped."""
    if column.numbers is not None:
        return "number"
    is_long = any(isinstance(cell, str) and not isinstance(cell, Html) and len(cell) > LONG for cell in column.cells)
    return "long" if is_long else None


def search_field(name: str, length: int) -> Html:
    """A field to search a table; hidden until the page's script shows it."""
    field = tag("input", type="search", id=f"{name}-search", autocomplete="off")
    count = tag("output", f"{length} of {length} rows", for_=f"{name}-search", class_="soft")
    label = tag("label", "Search the rows", for_=f"{name}-search")
    return tag("div", label, field, count, class_="search", data_table=name, hidden=True)


def definitions(values: Mapping[str, Any]) -> Html:
    """A list of names with their values."""
    return tag("dl", ((tag("dt", name), tag("dd", plain(value))) for name, value in values.items()))


def plain(value: Any) -> Child:
    """A setting in readable form."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={plain(item)}" for name, item in value.items()) or "none"
    return value if isinstance(value, Html) else str(value)


def shown(value: Any, form: str = ".4f") -> str:
    """A formatted number, or a dash if it is not finite."""
    number = finite(value)
    return "-" if number is None else format(number, form)


def section(title: str, *parts: Any) -> Html:
    return tag("section", tag("h3", title), *parts)
