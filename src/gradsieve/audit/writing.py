"""An audit as files. No file is overwritten, and none is left half written."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradsieve.audit import columns
from gradsieve.errors import MissingExtraError, RunFolderError
from gradsieve.tables.cells import safe_cell
from gradsieve.training.files import filled, whole_file, write_json

if TYPE_CHECKING:
    from gradsieve.audit.result import Audit

CHUNK = 2**16  # rows turned into text at a time, to bound memory


def write_audit(audit: Audit, folder: Path) -> list[Path]:
    """Write audit.csv, audit.parquet if pyarrow is installed, and audit.json last, which marks a complete folder."""
    with filled(folder, "audit.csv", "audit.parquet", "audit.json") as (table, typed, summary):
        write_csv(audit, table)
        written = [table]
        with contextlib.suppress(MissingExtraError):
            write_parquet(audit, typed)
            written.append(typed)
        write_summary(audit, summary)
        return [*written, summary]


def write_csv(audit: Audit, path: Path) -> None:
    """One line for each row of the source."""
    with new_file(path, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        for rows in chunks(audit):
            chunk = columns.table(audit, rows)
            if not file.tell():
                writer.writerow([safe_cell(name) for name in chunk])
            writer.writerows(zip(*(cells(column) for column in chunk.values()), strict=True))


def chunks(audit: Audit) -> Iterator[NDArray[np.int64]]:
    """The indices of the rows in chunks; one empty chunk if there are none, for the names of the columns."""
    for start in range(0, max(1, len(audit)), CHUNK):
        yield np.arange(start, min(start + CHUNK, len(audit)))


def cells(column: NDArray[Any]) -> list[Any]:
    """A column as safe for spreadsheets: text begins no formula, NaN is empty, a flag is 0 or 1."""
    if column.dtype == bool:
        return column.astype(int).tolist()
    if column.dtype == object:
        safe = {text: safe_cell(text) for text in set(column.tolist())}
        return [safe[text] for text in column.tolist()]
    if column.dtype == np.float32:
        column = rounded(column)
    return [value if value == value else "" for value in column.tolist()]


def rounded(column: NDArray[np.float32]) -> NDArray[np.float64]:
    """Numbers of single precision rounded to seven digits: the rest is noise."""
    values = column.astype(np.float64)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        unit = 10.0 ** (7 - np.ceil(np.log10(np.abs(values))))
        found = np.rint(values * unit) / unit
    return np.where(np.isfinite(found), found, values)


def write_parquet(audit: Audit, path: Path) -> None:
    """The columns of the CSV, with their types. Text stays as it is, since no spreadsheet runs it."""
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data", "Writing Parquet") from error
    with new_file(path, "wb") as file, contextlib.ExitStack() as stack:
        writer = None
        for rows in chunks(audit):
            part = pa.table(columns.table(audit, rows))
            writer = writer or stack.enter_context(pq.ParquetWriter(file, part.schema))
            writer.write_table(part)


def write_summary(audit: Audit, path: Path) -> None:
    """The audit without its rows."""
    check_absent(path)
    write_json(path, columns.summary(audit))


@contextlib.contextmanager
def new_file(path: Path, mode: Literal["wb", "w"]) -> Iterator[IO[Any]]:
    """A new file that appears under its name only once all of it is written."""
    check_absent(path)
    try:
        with whole_file(path, mode) as file:
            yield file
    except OSError as error:
        raise RunFolderError(
            f"{path} could not be written ({error.strerror or error}). Choose another place."
        ) from error


def check_absent(path: Path) -> None:
    if path.exists():
        raise RunFolderError(f"{path} is there already, and nothing is written over. Choose another place.")
