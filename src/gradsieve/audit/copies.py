"""A copy of an audited file without its flagged rows, or with their targets repaired."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, localcontext
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gradsieve.audit.cautions import is_majority
from gradsieve.audit.repair import decimals, repaired, repaired_targets
from gradsieve.audit.result import Audit
from gradsieve.audit.source import require_audited
from gradsieve.audit.writing import new_file
from gradsieve.data.table import Table, read_csv
from gradsieve.errors import InputError
from gradsieve.tables.frame import FLAGS, as_names

HALF = 0.5  # a repaired truth value is true from here on
Copy = Callable[[Audit, Path, Path, Sequence[str], bool], int]  # returns how many rows it changes


def clean_file(
    audit: Audit, source: str | Path, out: str | Path, targets: str | Sequence[str], *, repair: bool = False
) -> int:
    """Write a new file without the flagged rows, or with their targets repaired; returns how many rows that changes.

    A CSV file keeps every other line byte for byte, a Parquet file its schema. Rows without a target, which were not
    judged, stay. If more than half of the rows are flagged, nothing is written.
    """
    source, out, targets = Path(source), Path(out), as_names(targets)
    copy = check_copy(source, out)
    if is_majority(audit.flagged):
        raise InputError(
            f"{int(audit.flagged.sum())} of {len(audit)} rows are flagged, but an audit needs a majority of right "
            f"rows: {out} is not written. Look at the targets, and at what the audit says about them."
        )
    is_classes = audit.task == "classification"
    given = np.array(audit.names, dtype=object)[audit.given][:, None] if is_classes else audit.given
    require_audited(source, targets, audit.task, audit.row, given)
    return copy(audit, source, out, targets, repair)


def check_copy(source: Path, out: Path) -> Copy:
    """The function that copies files of this format; refuses an ``out`` of another format."""
    copy = COPIES.get(source.suffix.lower())
    if copy is None:
        raise InputError(
            f"{source} is not a CSV or Parquet file, and only these are copied. The column flagged of audit.csv names "
            "the rows; in Python, audit.clean(X, y) and audit.repaired(y) work on arrays."
        )
    if COPIES.get(out.suffix.lower(), copy) is not copy:
        raise InputError(f"{out} is a copy of {source}, so it has its format. Name it {out.stem}{source.suffix}.")
    return copy


def copy_csv(audit: Audit, source: Path, out: Path, targets: Sequence[str], repair: bool) -> int:
    table = read_csv(source, least_rows=1, least_columns=1)
    columns = [table.header.index(name) for name in targets]
    changed: dict[int, list[str] | None] = dict.fromkeys((audit.row - 1)[audit.flagged].tolist())
    if repair:
        new = new_cells(audit, [[row[column] for row in table.rows] for column in columns])
        changed = {place: list(table.rows[place]) for place in sorted({*chain(*new)})}
        for column, own in zip(columns, new, strict=True):
            for place, cell in own.items():
                changed[place][column] = cell  # pyright: ignore[reportOptionalSubscript]
    with new_file(out, "w") as file:
        file.write(changed_text(table, changed))
    return len(changed)


def copy_parquet(audit: Audit, source: Path, out: Path, targets: Sequence[str], repair: bool) -> int:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    table = pq.ParquetFile(source).read()
    if repair:
        new = new_cells(audit, [table[name].to_pylist() for name in targets])
        for name, own in zip(targets, new, strict=True):
            cells = table[name].to_pylist()
            for place, cell in own.items():
                cells[place] = as_stored(cell, table.schema.field(name).type)
            place = table.column_names.index(name)
            table = table.set_column(place, table.schema.field(name), pa.array(cells, table.schema.field(name).type))
        changed = len({*chain(*new)})
    else:
        kept = np.ones(len(table), dtype=bool)
        kept[(audit.row - 1)[audit.flagged]] = False
        table, changed = table.filter(pa.array(kept)), int((~kept).sum())
    with new_file(out, "wb") as file:
        pq.write_table(table, file)
    return changed


def as_stored(cell: Any, kind: Any) -> Any:
    """The number nearest to ``cell`` that a column of Arrow's type ``kind`` can hold."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    if pa.types.is_decimal(kind):
        step = Decimal(1).scaleb(-kind.scale)
        most = Decimal(10) ** (kind.precision - kind.scale) - step
        with localcontext() as context:
            context.prec = 100  # more than any column has
            return max(-most, min(most, cell)).quantize(step)
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        return max(limits.min, min(limits.max, cell))
    return cell


COPIES: dict[str, Copy] = {".csv": copy_csv, ".parquet": copy_parquet, ".pq": copy_parquet}


def new_cells(audit: Audit, columns: Sequence[Sequence[Any]]) -> list[dict[int, Any]]:
    """For each target column, the repaired cells by the index of their row, in the column's own spelling."""
    places = audit.row - 1
    if audit.task == "classification":
        cells = np.array([columns[0][place] for place in places.tolist()], dtype=object)
        new = repaired(audit, cells)
        return [{int(places[row]): new[row] for row in np.flatnonzero(new != cells)}]
    changed: list[dict[int, Any]] = []
    flagged = places[audit.flagged].tolist()
    for cells, given, own in zip(columns, audit.given.T, repaired_targets(audit).T, strict=True):
        digits = decimals(given)
        rows = zip(flagged, own.tolist(), given[audit.flagged].tolist(), strict=True)
        new_of = {row: in_form_of(cells[row], new, digits) for row, new, old in rows if new != old}
        changed.append({row: cell for row, cell in new_of.items() if cell != cells[row]})  # 2 for true is no change
    return changed


def in_form_of(cell: Any, number: float, digits: int | None) -> Any:
    """A number in the form of the cell that it replaces: its type, or its spelling of true and false."""
    if isinstance(cell, bool):
        return number >= HALF
    flags = next((flags for flags in FLAGS if isinstance(cell, str) and cell.strip() in flags), None)
    return flags[number >= HALF] if flags else type(cell)(written(number, digits))


def written(number: float, digits: int | None) -> str:
    """A number with this many decimals, None for as many as it needs."""
    return f"{number:.15g}" if digits is None else f"{number:.{digits}f}"


def changed_text(table: Table, changed: Mapping[int, list[str] | None]) -> str:
    """The file with some rows, by their index, replaced or (None) left out; line ends and quotes stay as they are."""
    with open(table.path, encoding="utf-8", newline="") as file:  # not utf-8-sig: a byte order mark stays
        lines = list(file)
    ends = [table.header_line, *table.lines]
    pieces = ["".join(lines[: table.header_line])]
    for place, (start, end) in enumerate(pairwise(ends)):
        text = "".join(lines[start:end])
        row = text.lstrip("\r\n")  # empty lines before the row stay
        pieces += [text.removesuffix(row), csv_row(changed[place], line_end(row)) if place in changed else row]
    pieces.append("".join(lines[ends[-1] :]))
    text = "".join(pieces)
    return text if line_end(lines[-1]) else text.removesuffix(line_end(text))


def csv_row(row: list[str] | None, end: str) -> str:
    if row is None:
        return ""
    file = io.StringIO()
    csv.writer(file, lineterminator=end).writerow(row)
    return file.getvalue()


def line_end(text: str) -> str:
    """The line end of a text; empty if it has none, as the last line of a file may."""
    return next((end for end in ("\r\n", "\n", "\r") if text.endswith(end)), "")
