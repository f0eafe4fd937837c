"""The most suspect rows of a report: their pictures or cells, their given targets, and the suggested ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsieve.report.figures import finite
from gradsieve.report.findings import Findings, number_or_text
from gradsieve.report.html_tables import Column, any_column, search_field, section, shown, table, text_column
from gradsieve.report.markup import Html, tag
from gradsieve.report.source_rows import LINE, ShownRows
from gradsieve.report.subjects import Subject

GIVEN = "given → suggested"
ROW = ("id", "file")
FIRST = (*ROW, "given", "suggested", GIVEN, "kind", "in truth", "suspicion", "flagged", "confidence", "mean_score")
POINTS = "On the pictures: the given points in orange, the suggested ones in blue."
MOST_OUTPUTS = 4  # targets of a row that are shown in one cell
MOST_INPUTS = 8  # input columns of a table that are shown as columns; with more, a single cell shows the first ones


def rows_part(subject: Subject, name: str | None) -> Html | None:
    """The most suspect rows. With a ``name``, the table can be sorted and searched."""
    findings = subject.findings
    if findings is None or not findings.columns.get("row"):
        return None
    columns = row_columns(findings, subject.shown)
    length = len(findings.columns["row"])
    caption = f"The {length} rows of {findings.summary.get('rows')} with the largest {findings.measure}"
    search = search_field(name, length) if name is not None else None
    points = tag("p", POINTS) if subject.shown.has_points else None
    return section("Most suspect rows", points, search, table(caption, columns, name=name))


def row_columns(findings: Findings, beside: ShownRows) -> list[Column]:
    """All columns about the rows: picture, given and suggested targets, suspicion and so on."""
    found = dict(findings.columns)
    rows = found.pop("row")
    found.pop("rank", None)
    columns = [any_column("rank", list(range(1, len(rows) + 1))), any_column("row", rows)]
    if beside.pictures:
        columns.insert(1, Column("", [picture(beside, row) for row in rows]))
    if beside.truths:
        found["in truth"] = [beside.truths.get(row, "") for row in rows]
    names = [str(name) for name in findings.summary.get("names") or []]
    if any(f"given {name}" in found for name in names):
        found = merged_outputs(found, names)
    titles = [*(title for title in FIRST if title in found), *(title for title in found if title not in FIRST)]
    exact = {"given": ".6g", "suggested": ".6g"}
    columns += [any_column(title.replace("_", " "), found[title], exact.get(title, ".4g")) for title in titles]
    return columns + input_columns([beside.cells.get(row, {}) for row in rows])


def picture(beside: ShownRows, row: int) -> Html:
    source = beside.pictures.get(row)
    return tag("img", src=source, alt=f"row {row}", width=96 if beside.has_points else 48) if source else Html("")


def merged_outputs(found: Mapping[str, Sequence[Any]], names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """For many outputs, one cell for given and suggested targets: of the outputs that are off, or of the first ones."""
    given = [found.get(f"given {name}") for name in names]
    suggested = [found.get(f"suggested {name}") for name in names]
    parts = {f"{what} {name}" for what in ("given", "suggested") for name in names}
    others: dict[str, Sequence[Any]] = {
        title: values for title, values in found.items() if title not in parts | {"off"}
    }
    length = len(next(iter(found.values())))
    off = [f";{cell};" for cell in found.get("off", [""] * length)]  # not split(";"): names may contain semicolons
    cells = []
    for row in range(length):
        marked = [place for place, name in enumerate(names) if f";{name};" in off[row]] or list(range(len(names)))
        texts = [
            f"{names[place]} {shown_of(given[place], row)}"
            + (f" → {shown_of(suggested[place], row)}" if suggested[place] else "")
            for place in marked[:MOST_OUTPUTS]
        ]
        more = [f"and {len(marked) - MOST_OUTPUTS} more"] if len(marked) > MOST_OUTPUTS else []
        cells.append("; ".join([*texts, *more]))
    title = GIVEN if any(suggested) else "given"
    return {**others, title: cells}


def shown_of(values: Sequence[Any] | None, row: int) -> str:
    return "" if values is None else shown(values[row], ".3g")


def input_columns(cells: Sequence[Mapping[str, str]]) -> list[Column]:
    """The cells of an audited table: each in its own column if they are few, else joined in one."""
    names = list(dict.fromkeys(name for row in cells for name in row))
    inputs = [name for name in names if name != LINE]
    first = names if len(inputs) <= MOST_INPUTS else [name for name in names if name == LINE]
    columns = [cell_column(name, [row.get(name, "") for row in cells]) for name in first]
    if len(inputs) > MOST_INPUTS:
        texts = ["; ".join(f"{name} {row.get(name, '')}" for name in inputs[:MOST_INPUTS]) for row in cells]
        columns.append(text_column(f"inputs (the first {MOST_INPUTS} of {len(inputs)})", texts))
    return columns


def cell_column(title: str, texts: Sequence[str]) -> Column:
    """Cells as written in the file, sorted as numbers if all of them are."""
    numbers = [finite(number_or_text(text)) for text in texts]
    return Column(title, texts, None if None in numbers else numbers)
