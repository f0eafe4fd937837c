"""Parquet and Arrow files as one table that is never read whole.

A row's number is its place in the concatenation of the shards in the order of their names, so that it means the same
row in every epoch and after a resume. This module reads no rows: `shard_reader` does.
"""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from gradsieve.arguments import again
from gradsieve.data.files import files_below
from gradsieve.errors import InputError, MissingExtraError

FORMATS = {".parquet": "Parquet", ".pq": "Parquet", ".arrow": "Arrow", ".feather": "Arrow", ".ipc": "Arrow"}
HIDDEN = (".", "_")  # files and folders whose names begin so are not data
EDGE = 2**16  # bytes at both ends of a file that are hashed to notice changes
TEXT_BYTES = 64  # memory of a cell of text, roughly
BUFFER = 2**16  # bytes of a column chunk read at a time
IN_DAYS = ("date", "time", "duration")  # kinds of columns that are read as days
NO_VALUES = "empty"  # the kind of a column that Arrow knows as null: pandas and pyarrow write it for None alone
NO_KEY = "__HIVE_DEFAULT_PARTITION__"  # what stands for a missing value in a folder's name
SLICE = 2**16  # most rows read at a time


class Version(NamedTuple):
    """Tells a file from another that replaces it. A resume does not compare versions: a copy has other times."""

    size: int  # bytes
    changed_at: int  # nanoseconds

    @classmethod
    def of(cls, path: Path) -> Version:
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)  # not st_ino: on some network disks it is not constant


class Shard(NamedTuple):
    """One file."""

    path: Path
    version: Version
    rows: int
    first: int  # the number of its first row
    keys: dict[str, str]  # columns given by the names of its folders, as in part=1/a.parquet


class Group(NamedTuple):
    """Rows that a file keeps together: a row group of Parquet, a record batch of Arrow."""

    shard: int
    place: int  # in its file
    rows: int
    first: int  # the number of its first row


class Slice(NamedTuple):
    """Some of a group's rows."""

    group: Group
    start: int
    rows: int

    @property
    def first(self) -> int:
        return self.group.first + self.start


@dataclass(frozen=True)
class Shards:
    """A table in files: what is known without reading its rows."""

    path: Path
    files: tuple[Shard, ...]
    groups: tuple[Group, ...]
    columns: dict[str, str]  # number, text or one of IN_DAYS, by name
    sha256: str = field(repr=False)  # of the files' names, sizes, layouts and ends

    def __len__(self) -> int:
        return sum(shard.rows for shard in self.files)

    @property
    def bytes_in_memory(self) -> int:
        """The memory that the table would take as a frame, estimated."""
        return len(self) * sum(TEXT_BYTES if kind == "text" else 8 for kind in self.columns.values())

    def with_text(self, names: Collection[str]) -> Shards:
        """The same table with some columns read as text, whatever their type."""
        return replace(self, columns={name: "text" if name in names else kind for name, kind in self.columns.items()})

    def locate(self, row: int) -> str:
        """Where a row is, for messages: its file, and its number there from 1."""
        shard = self.files[bisect_right([shard.first for shard in self.files], row) - 1]
        return f"{shard.path}, row {row - shard.first + 1}"


def is_shards(path: Path) -> bool:
    """Whether this is a Parquet or Arrow file, or a folder with such files."""
    if path.is_dir():
        return next(find_shards(path), None) is not None
    return path.suffix.lower() in FORMATS


def find_shards(folder: Path) -> Iterator[Path]:
    """The Parquet and Arrow files below a folder, except hidden ones."""
    return (path for path in files_below(folder, HIDDEN) if path.suffix.lower() in FORMATS and path.is_file())


def open_shards(path: Path) -> Shards:
    """The layout of one file or of a folder of files, which must have the same columns."""
    paths = sorted(find_shards(path), key=lambda each: each.as_posix()) if path.is_dir() else [path]
    if not paths or not all(each.is_file() for each in paths):
        raise InputError(f"{path} is not a file, nor a folder of Parquet or Arrow files.")
    files, groups, columns, first = [], [], {}, 0
    keys = [folder_keys(each.relative_to(path)) if path.is_dir() else {} for each in paths]
    key_kinds = {name: key_kind([each[name] for each in keys if name in each]) for each in keys for name in each}
    digest = hashlib.sha256()
    for number, each in enumerate(paths):
        version, counts, schema = layout(each)
        own = {name: value for name, value in keys[number].items() if name not in schema}
        kinds = {name: column_kind(kind) for name, kind in schema.items()} | {name: key_kinds[name] for name in own}
        if number == 0:
            columns = kinds
        kinds, columns = filled(kinds, columns), filled(columns, kinds)
        if kinds != columns:
            raise InputError(f"{each} has other columns than {paths[0]}: {column_differences(kinds, columns)}.")
        files.append(Shard(each, version, sum(counts), first, own))
        for place, rows in enumerate(counts):
            if rows:
                groups.append(Group(number, place, rows, first))
            first += rows
        name = each.relative_to(path).as_posix() if path.is_dir() else each.name
        digest.update(f"{name}\n{version.size}\n{counts}\n{sorted(kinds.items())}\n".encode() + edges(each))
    if not columns or not first:
        raise InputError(f"{path} has no {'rows' if columns else 'columns'}.")
    columns = {name: "text" if kind == NO_VALUES else kind for name, kind in columns.items()}
    return Shards(path, tuple(files), tuple(groups), columns, digest.hexdigest())


def filled(kinds: dict[str, str], others: dict[str, str]) -> dict[str, str]:
    """The kinds of a shard's columns; those without any value have the kind that they have in other shards."""
    return {name: others.get(name, kind) if kind == NO_VALUES else kind for name, kind in kinds.items()}


def layout(path: Path) -> tuple[Version, list[int], dict[str, Any]]:
    """The version of a file, the rows of each of its groups, and the types of its columns."""
    pa = arrow()
    try:
        version = Version.of(path)
        if FORMATS[path.suffix.lower()] == "Parquet":
            file = parquet_file(path)
            counts = [file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups)]
            schema = file.schema_arrow
        else:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                schema, places = reader.schema, range(reader.num_record_batches)
                if places and not lies_in(reader.get_batch(0), source):  # compressed: unpack one column to count rows
                    reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[0]))
                counts = [reader.get_batch(place).num_rows for place in places]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, error) from error
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise InputError(f"{path} has more than one column named {repeated[0]!r}. Give each a name of its own.")
    return version, counts, {name: schema.field(name).type for name in schema.names}


def folder_keys(path: Path) -> dict[str, str]:
    """The columns in the names of folders, as Hive and Spark write them: part=1/a.parquet."""
    pairs = (folder.partition("=") for folder in path.parts[:-1])
    return {unquote(name): unquote(value) for name, is_key, value in pairs if is_key and name}


def key_kind(values: Sequence[str]) -> str:
    """How a column from folder names is read: as numbers or dates if all values are, else as text."""
    for kind in ("number", "date"):
        with contextlib.suppress(arrow().ArrowInvalid):
            for value in set(values):
                key_column(value, kind, 1)
            return kind
    return "text"


def key_column(value: str, kind: str, rows: int) -> Any:
    """An Arrow column with the same value in all rows."""
    pa = arrow()
    types = {"number": pa.float64(), "date": pa.date32(), "text": pa.string()}
    cell = pa.scalar(None if value == NO_KEY else value, pa.string()).cast(types[kind])
    return pa.repeat(cell, rows)


def column_kind(kind: Any) -> str:
    """How a column of an Arrow type is read: number, text, one of `IN_DAYS`, or, if it has no values, as others say."""
    types = arrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    kinds = {
        "number": (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
        "date": (types.is_date, types.is_timestamp),
        "time": (types.is_time,),
        "duration": (types.is_duration,),
        NO_VALUES: (types.is_null,),
    }
    return next((name for name, tests in kinds.items() if any(is_kind(kind) for is_kind in tests)), "text")


def column_differences(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """How the columns of two shards differ, for messages."""
    said = [f"{name} is missing" for name in theirs if name not in ours]
    said += [f"{name} is new" for name in ours if name not in theirs]
    said += [
        f"{name} is {ours[name]}, not {theirs[name]}" for name in ours if theirs.get(name, ours[name]) != ours[name]
    ]
    return ", ".join(said)


def edges(path: Path) -> bytes:
    """The first and last bytes of a file; the latter hold the layout of its content."""
    with open(path, "rb") as file:
        head = file.read(EDGE)
        file.seek(-min(EDGE, path.stat().st_size), 2)
        return head + file.read()


def in_file_order(groups: Sequence[Group], rows: int) -> Iterator[Slice]:
    """All rows in the order of the files, in slices of at most ``rows``."""
    for group in groups:
        for start in range(0, group.rows, rows):
            yield Slice(group, start, min(rows, group.rows - start))


def lies_in(batch: Any, source: Any) -> bool:
    """Whether the columns of a batch lie in the mapped file ``source``."""
    source.seek(0)
    file = source.read_buffer()  # a view, not a copy
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size]
    return all(file.address <= buffer.address < file.address + file.size for buffer in buffers)


def unreadable(path: Path, error: Exception) -> InputError:
    """One error for a shard that is gone, cut short or damaged."""
    name, reason = FORMATS[path.suffix.lower()], str(error).strip().splitlines()[0].rstrip(".")
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} is not there any more. Put it back, then {again()}.")
    return InputError(f"{path} cannot be read as {name}: it is damaged or of another format ({reason}).")


def parquet_file(path: Path) -> Any:
    """An open Parquet file that is read page by page: a row group is never in memory as a whole.

    Where pages have checksums (``write_page_checksum``), these are compared.
    """
    try:
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data", "Reading Parquet") from error
    return pq.ParquetFile(str(path), pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True)


def arrow() -> Any:
    """The pyarrow library, which is optional."""
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.ipc  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data", "Reading Parquet") from error
    return pa
