"""A table of numbers with a header, as CSV."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gradsieve.arguments import argument, is_offered
from gradsieve.counts import part
from gradsieve.data.dataset import DataSet, Recipe, Rows, Source, Task
from gradsieve.data.files import find
from gradsieve.data.scaling import standardise, standardise_targets
from gradsieve.errors import InputError
from gradsieve.registry import unknown
from gradsieve.seeds import generator

LAYOUT = "one .csv file with a header; or give the file itself"

MISSING_WORDS = {"", "na", "n/a", "nan", "null", "?"}  # missing values in columns of words, in lower case
MISSING = MISSING_WORDS | {"none", "-", "--", "\u2013", "\u2014", "#n/a", "<na>"}  # in columns of numbers
MINUS = "\u2212"  # the typographic minus sign
EXACT = 2.0**53  # from here on, float64 cannot tell all whole numbers apart
OTHER_MARKS = {"semicolons": ";", "tabs": "\t"}  # other separators, to recognise files that are not comma-separated


class Table(NamedTuple):
    """The cells of a CSV file as text, with their line numbers."""

    path: Path
    header: list[str]
    rows: list[list[str]]  # each as long as the header
    lines: list[int]  # the line on which each row ends, counted from 1
    header_line: int  # the line on which the header ends


def load_table(folder: Path | None = None, target: str = "", task: Task = "regression", ignore: str = "") -> DataSet:
    """Four fifths of the rows to train on, always the same ones, and the rest to test on.

    ``target`` and ``ignore`` are column names separated by commas; the default target is the last column. Inputs and
    regression targets are standardised on the training rows. Classes may be words.
    """
    if task not in ("regression", "classification"):
        raise InputError(unknown("task", task, dict.fromkeys(TABLE.tasks)))
    table = read_csv(find_csv(folder))
    targets, columns = find_roles(table, target, ignore)
    train, test = split(table)
    values = numbers(table, columns)
    inputs = standardise(values[train], values[test])
    if task == "classification":
        labels, names = classes(table, targets)
        return DataSet(task, Rows(inputs[0], labels[train]), Rows(inputs[1], labels[test]), names)
    names = tuple(table.header[column] for column in targets)
    values = numbers(table, targets, are_targets=True)
    scaled = standardise_targets(names, values[train], values[test])
    return DataSet(task, Rows(inputs[0], scaled[0]), Rows(inputs[1], scaled[1]), names)


def find_csv(folder: Path | None) -> Path:
    """``folder`` if it is a file, else the only CSV file in it."""
    if folder is not None and Path(folder).is_file():
        return Path(folder)
    files = sorted(path.name for path in Path(folder).glob("*.csv")) if folder is not None else []
    if len(files) > 1:
        raise InputError(f"table: there are {len(files)} .csv files in {folder}. Give one of them: {', '.join(files)}.")
    return find("table", folder, LAYOUT, *files or ["*.csv"])


def read_csv(path: Path, *, least_rows: int = 5, least_columns: int = 2) -> Table:
    """The header and the rows of a comma-separated file."""
    rows, lines = [], []
    line = 0  # the last line that was read
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)  # else a quote that is never closed swallows the rows below it
            header = named([name.strip() for name in next(reader, [])])
            check_header(path, header, least_columns)
            line = header_line = reader.line_num
            for row in reader:
                line = reader.line_num
                if len(row) not in (0, len(header)):
                    raise InputError(f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}.")
                if row:  # not for an empty line
                    rows.append(row)
                    lines.append(line)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} cannot be read as CSV in UTF-8{strange_line(path)}. Save it as CSV UTF-8, as spreadsheets call it."
        ) from error
    except csv.Error as error:
        raise InputError(
            f"{path}, line {line + 1}: the row that begins here cannot be read as CSV ({error}). A cell that begins "
            'with a quote ends with one, and a quote within it is written twice: "5"" pipe".'
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read as CSV in UTF-8: {error}.") from error
    if len(rows) < least_rows:
        why = "a split into five needs 5" if least_rows == 5 else f"at least {least_rows} are needed"
        raise InputError(f"{path} has {len(rows)} rows below the header, but {why}.")
    return Table(path, header, rows, lines, header_line)


def named(header: list[str]) -> list[str]:
    """Names for several columns that have none, as pandas gives them: spreadsheets save empty columns at the end."""
    if header.count("") < 2:
        return header
    return [name or f"Unnamed: {place}" for place, name in enumerate(header)]


def strange_line(path: Path) -> str:
    """Where a file is not UTF-8, in words. (The decoder's own position is within a chunk of the file.)"""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                before = line[: error.start].decode()[-20:]
                return f": line {number} has the byte 0x{line[error.start]:02x} after {before!r}"
    return ""  # every line is valid alone, but not all together, such as in UTF-16


def check_header(path: Path, header: Sequence[str], least_columns: int) -> None:
    """Require different column names, separated by commas. Checked first: each row would show the same error."""
    other = next((name for name, mark in OTHER_MARKS.items() if len(header) == 1 and mark in header[0]), "")
    if other:
        raise InputError(
            f"{path}: the first line must hold two or more column names with commas between them, but has {other}. "
            "Write the file with commas, and its numbers with points (2.5)."
        )
    if len(header) < least_columns or all(finite_number(name) is not None for name in header):
        raise InputError(
            f"{path}: the first line must hold two or more different column names with commas between them, "
            f"but it begins {','.join(header)[:60]!r}."
        )
    repeated, times = Counter(header).most_common(1)[0]
    if times > 1:
        raise InputError(f"{path}: the first line names {times} columns {repeated!r}. Give each a name of its own.")


def find_roles(table: Table, target: str = "", ignore: str = "") -> tuple[list[int], list[int]]:
    """The indices of the target columns, by default the last one, and of the input columns."""
    ignored = find_columns(table, "ignore", ignore)
    targets = find_columns(table, "target", target or table.header[-1])
    inputs = [column for column in range(len(table.header)) if column not in {*targets, *ignored}]
    if not inputs or set(targets) & set(ignored):
        raise InputError(f"{table.path}: target and ignore leave no inputs, or ignore a target.")
    return targets, inputs


def split(table: Table) -> tuple[Tensor, Tensor]:
    """The indices of training and test rows, in the order of the file."""
    order = torch.randperm(len(table.rows), generator=generator(0, "table", "split"))
    held_out = part(0.2, len(order))
    return order[held_out:].sort().values, order[:held_out].sort().values


def find_columns(table: Table, option: str, names: str) -> list[int]:
    """The indices of the columns that ``names`` lists."""
    listed = [names] if names in table.header else [name.strip() for name in names.split(",") if name.strip()]
    for name in listed:
        if name not in table.header:
            raise InputError(f"{option}: {unknown('column', name, dict.fromkeys(table.header))} File: {table.path}.")
    return [table.header.index(name) for name in dict.fromkeys(listed)]


def numbers(table: Table, columns: Sequence[int], *, are_targets: bool = False) -> Tensor:
    """The cells of ``columns`` as (N, columns) float64."""
    values = [[finite_number(row[column]) for column in columns] for row in table.rows]
    for row, found in enumerate(values):
        if None in found:
            column = columns[found.index(None)]
            name = table.header[column]
            way = f", or leave the column out{by_option({'ignore': name})}"
            if are_targets:
                by = by_option({"task": "classification"})
                way = by and f", or take its words for classes{by}"
            raise InputError(
                f"{table.path}, line {table.lines[row]}, column {name}: {table.rows[row][column][:40]!r} is not a "
                f"finite number. Correct the row{way}."
            )
    return torch.tensor(values, dtype=torch.float64)


def by_option(option: dict[str, str]) -> str:
    """How the user can give this option of the data set, in words; empty where there are no such options."""
    return f" by {argument('data_options', option)}" if is_offered("data_options") else ""


def classes(table: Table, columns: Sequence[int]) -> tuple[Tensor, tuple[str, ...]]:
    """The only column of ``columns`` as class numbers (N,), and the names of the classes."""
    if len(columns) != 1:
        raise InputError(f"target names {len(columns)} columns, but classification has one.")
    cells = [label(row[columns[0]]) for row in table.rows]
    if "" in cells:
        line, name = table.lines[cells.index("")], table.header[columns[0]]
        raise InputError(f"{table.path}, line {line}, column {name}: no class. Fill it in or remove the row.")
    names = sorted_classes(cells)
    if not 2 <= len(names) <= len(cells) // 2:
        by = by_option({"task": "regression"})
        raise InputError(
            f"{table.path}: column {table.header[columns[0]]} has {len(names)} different values in {len(cells)} "
            f"rows, which is not a set of classes. Choose another target{by and f', or treat it as real-valued{by}'}."
        )
    number = {name: index for index, name in enumerate(names)}
    return torch.tensor([number[cell] for cell in cells]), tuple(names)


def label(cell: str) -> str:
    """A cell as the name of a class or category: 1, 01 and 1.0 are the same; empty for missing values."""
    number = finite_number(cell)
    if number is None or abs(number) >= EXACT:
        return "" if cell.strip().lower() in MISSING_WORDS else cell.strip()
    return str(int(number)) if number.is_integer() else str(number)


def sorted_classes(words: Iterable[str]) -> list[str]:
    """The different words, sorted: first numbers by value, then text."""
    return sorted(set(words), key=lambda word: (finite_number(word) is None, finite_number(word) or 0.0, word))


def finite_number(cell: str) -> float | None:
    """A cell as a finite number, else None. Unlike float(), refuses 1_2 and digits of other scripts."""
    text = cell.strip().replace(MINUS, "-")
    if "_" in text or not text.isascii():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


TABLE = Source(
    summary="your own table: a CSV file of numbers with a header",
    tasks=("regression", "classification"),
    load=load_table,
    recipe=Recipe(model="mlp", epochs=60, batch_size=256, learning_rate=1e-3, ramp=10),
    layout=LAYOUT,
)
