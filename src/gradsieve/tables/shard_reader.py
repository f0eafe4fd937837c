"""Reads the rows of tables in files, a slice at a time.

Parquet is read page by page. Arrow files are mapped into memory a slice at a time and not as a whole: mapped pages
count as resident memory, and if a mapped file is cut short, a signal ends the process instead of an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradsieve.arguments import again
from gradsieve.errors import InputError
from gradsieve.tables.shards import (
    FORMATS,
    Group,
    Shard,
    Shards,
    Slice,
    Version,
    arrow,
    key_column,
    lies_in,
    parquet_file,
    unreadable,
)


class Reader:
    """Reads slices. If a slice begins where the last one of its group ended, nothing is decoded twice."""

    def __init__(self, shards: Shards, names: Sequence[str]) -> None:
        self.shards, self.names = shards, list(names)
        keys = shards.files[0].keys  # the same columns in all files
        stored = [name for name in shards.columns if name not in keys]
        self.stored = [name for name in names if name not in keys] or stored[:1]  # one, if only to count rows
        self.files: dict[int, Any] = {}  # open Parquet files by their number
        self.cursors: dict[tuple[int, int], Cursor] = {}

    def read(self, part: Slice) -> Any:
        """The rows of a slice as an Arrow table."""
        pa, key = arrow(), part.group[:2]
        shard = self.shards.files[part.group.shard]
        try:
            check_same(shard)
            cursor = self.cursors.pop(key, None)
            if cursor is None or cursor.done > part.start:
                cursor = Cursor(self.batches(part.group, part.rows))
            while cursor.done < part.start:  # after a resume
                cursor.take(min(part.rows, part.start - cursor.done))
            table = cursor.take(part.rows)
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise unreadable(shard.path, error) from error
        if part.start + part.rows < part.group.rows:
            self.cursors[key] = cursor
        return table

    def batches(self, group: Group, rows: int) -> Iterator[Any]:
        """The group from its beginning, in batches of about ``rows`` rows."""
        shard = self.shards.files[group.shard]
        if FORMATS[shard.path.suffix.lower()] == "Parquet":
            file = self.files.get(group.shard) or self.open(group.shard)
            batches = file.iter_batches(rows, row_groups=[group.place], columns=self.stored)
        else:
            batches = mapped_batches(shard, group, self.stored, rows)
        return (self.with_keys(batch, shard) for batch in batches)

    def with_keys(self, batch: Any, shard: Shard) -> Any:
        """The columns of the file and those that the names of its folders give."""
        if self.stored == self.names:
            return batch
        keys = {name: value for name, value in shard.keys.items() if name in self.names}
        columns = [key_column(value, self.shards.columns[name], len(batch)) for name, value in keys.items()]
        return arrow().RecordBatch.from_arrays([*batch.columns, *columns], [*batch.schema.names, *keys])

    def open(self, number: int) -> Any:
        """Open a Parquet file and close those that no cursor reads."""
        busy = {shard for shard, _ in self.cursors}
        for other in [other for other in self.files if other not in busy]:
            self.files.pop(other).close()
        self.files[number] = parquet_file(self.shards.files[number].path)
        return self.files[number]


def mapped_batches(shard: Shard, group: Group, names: Sequence[str], rows: int) -> Iterator[Any]:
    """A record batch of Arrow from its beginning, ``rows`` rows at a time.

    The file is mapped anew for each of these parts and unmapped after it. So a batch of any size takes the memory of a
    few rows, and a file that was cut short is noticed before it is read. Compressed batches are unpacked as a whole.
    """
    held = None
    for start in range(0, group.rows, rows):
        batch, is_mapped = (held, False) if held is not None else map_batch(shard.path, group.place, names)
        held = None if is_mapped else batch
        batch = batch.slice(start, rows)  # releases the other rows while the caller works
        yield batch


def map_batch(path: Path, place: int, names: Sequence[str]) -> tuple[Any, bool]:
    """Some columns of a record batch, and whether they are mapped; if not, they were unpacked into memory."""
    with arrow().memory_map(str(path)) as source:
        # Not IpcReadOptions(included_fields=...), which copies the whole batch.
        batch = arrow().ipc.open_file(source).get_batch(place).select(names)
        return batch, lies_in(batch, source)


class Cursor:
    """A place in a group that advances as rows are taken."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches, self.done, self.left = batches, 0, []

    def take(self, rows: int) -> Any:
        """The next rows, as a table."""
        while sum(batch.num_rows for batch in self.left) < rows:
            batch = next(self.batches, None)
            if batch is None:
                raise ValueError("it ends before the rows that it says it has")
            self.left.append(batch)
        table = arrow().Table.from_batches(self.left)
        rest = table.slice(rows)
        self.left = rest.to_batches() if rest.num_rows else []
        self.done += rows
        return table.slice(0, rows)


def check_same(shard: Shard) -> None:
    """Refuse a shard that has changed since it was opened."""
    version = Version.of(shard.path)
    if version != shard.version:
        how = (
            "it was written anew"
            if version.size == shard.version.size
            else f"it had {shard.version.size} bytes and has {version.size} now"
        )
        raise InputError(
            f"{shard.path} has changed while it was being read: {how}. Put it back as it was, then {again()}."
        )
