"""Files as one table: row numbers, slices, and what may be wrong with a file."""

import datetime
import decimal
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradsieve.errors import InputError
from gradsieve.tables import shard_reader
from gradsieve.tables.reading import read_frame
from gradsieve.tables.shard_frames import frames, read_slice, to_numpy
from gradsieve.tables.shard_reader import Reader
from gradsieve.tables.shards import Slice, column_kind, is_shards, open_shards

ROWS, GROUP = 3000, 250


def cells(frame):
    return {name: values.tolist() for name, values in frame.columns.items()}


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(np.array(left[name]), np.array(right[name]))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_folder_of_shards_is_the_table_that_was_cut(tmp_path, suffix, columns, write_shards):
    folder = write_shards(tmp_path / "data", columns(), suffix=suffix)
    (tmp_path / "data" / "_metadata.parquet").write_bytes(b"not data")
    table = open_shards(folder)
    assert is_shards(folder)
    assert len(table) == ROWS
    assert [group.first for group in table.groups] == list(range(0, ROWS, GROUP))
    assert table.columns == {"a": "number", "b": "number", "c": "number", "town": "text", "y": "number", "kind": "text"}
    assert table.locate(2500) == f"{folder}/part-2{suffix}, row 501"
    pq.write_table(pa.table(columns()), tmp_path / "whole.parquet")
    same(cells(read_frame(folder)), cells(read_frame(tmp_path / "whole.parquet")))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_slices_in_any_order_are_rows_of_the_whole(tmp_path, suffix, columns, write_shards):
    folder = write_shards(tmp_path / "data", columns(), group=1000, suffix=suffix)
    table, whole = open_shards(folder), read_frame(folder)
    reader = Reader(table, ["a", "town"])
    # On, on, back, into the middle of another.
    for group, start, rows in [(0, 0, 300), (0, 300, 300), (0, 100, 50), (2, 700, 300), (1, 999, 1), (2, 0, 10)]:
        part = Slice(table.groups[group], start, rows)
        frame = read_slice(reader, part)
        assert frame.columns["a"].tolist() == whole.columns["a"][part.first : part.first + rows].tolist()
        assert frame.columns["town"].tolist() == whole.columns["town"][part.first : part.first + rows].tolist()
        assert frame.row_numbers.tolist() == list(range(part.first, part.first + rows))


@pytest.mark.parametrize("packed", [None, "lz4"])
def test_a_record_batch_of_any_size_is_mapped_a_slice_at_a_time(tmp_path, packed, monkeypatch):
    """Nothing of it is copied into memory; what is compressed must be, and is unpacked once."""
    path, values = tmp_path / "t.arrow", np.arange(100_000.0)
    table = pa.table({"a": values, "b": -values, "word": [str(row % 7) for row in range(len(values))]})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=packed)) as file:
        file.write_table(table)
    before, opened, map_batch = pa.total_allocated_bytes(), [], shard_reader.map_batch
    monkeypatch.setattr(shard_reader, "map_batch", lambda *each: opened.append(each) or map_batch(*each))
    reader = Reader(open_shards(path), ["b", "word"])
    (group,) = reader.shards.groups
    for start in range(0, group.rows, 10_000):
        part = reader.read(Slice(group, start, 10_000))
        assert part.column("b").to_pylist() == (-values[start : start + 10_000]).tolist()
        assert part.column("word")[-1].as_py() == str((start + 9_999) % 7)
        assert packed or pa.total_allocated_bytes() == before
    assert len(opened) == (1 if packed else 10)


def test_a_group_that_is_being_read_is_looked_at_again(tmp_path, columns):
    """The file is open, and would give the other rows."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns()), path)
    reader = Reader(open_shards(path), ["a"])
    (group,) = reader.shards.groups
    reader.read(Slice(group, 0, 100))
    os.utime(path, ns=(0, 0))
    with pytest.raises(InputError, match=r"t\.parquet has changed while it was being read: it was written anew"):
        reader.read(Slice(group, 100, 100))


def test_a_file_of_arrow_that_is_cut_short_under_its_reader_is_an_error_and_no_signal(tmp_path):
    path = tmp_path / "t.arrow"
    table = pa.table({"a": np.arange(100_000.0)})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    reader = Reader(open_shards(path), ["a"])
    (group,) = reader.shards.groups
    first = read_slice(reader, Slice(group, 0, 10_000))
    os.truncate(path, 1000)
    with pytest.raises(InputError, match=r"t\.arrow has changed while it was being read"):
        reader.read(Slice(group, 10_000, 10_000))
    assert first.columns["a"].sum() == np.arange(10_000.0).sum()  # what was read before is a copy


def read_column(column):
    return to_numpy(column, column_kind(column.type))


def test_columns_of_every_type_are_what_a_loop_over_python_objects_gives():
    table = pa.table(
        {
            "whole": pa.array([1, None, -(2**60)]),
            "small": pa.array([1.5, None, float("inf")], pa.float32()),
            "truth": pa.array([True, None, False]),
            "money": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-3.50")]),
            "day": pa.array([datetime.date(1970, 1, 11), None, datetime.date(1969, 12, 31)]),
            "coded": pa.array([7, None, 7]).dictionary_encode(),
        }
    )
    days = {"day": [10.0, np.nan, -1.0]}
    for name in table.column_names:
        expected = [np.nan if cell is None else cell for cell in table.column(name).to_pylist()]
        np.testing.assert_array_equal(read_column(table.column(name)), np.array(days.get(name, expected), dtype=float))
    texts = pa.table(
        {
            "word": pa.array(["x", None, "é"]),
            "coded": pa.array(["x", None, "é"]).dictionary_encode(),
            "raw": pa.array([b"x", None, "é".encode()]),
            "large": pa.array(["x", None, "é"], pa.large_string()),
        }
    )
    for name in texts.column_names:
        assert read_column(texts.column(name)).tolist() == ["x", "", "é"]


def test_a_shard_may_have_no_value_in_a_column(tmp_path, columns, write_shards):
    """pandas and pyarrow write a column of None alone with the type null, whatever other files have there."""
    table = columns() | {"day": pa.array([datetime.date(2024, 2, 29)] * ROWS), "none": pa.nulls(ROWS)}
    folder = write_shards(tmp_path / "data", table)
    for number, names in enumerate((["a", "town"], ["day"], ["y", "kind"])):
        path = folder / f"part-{number}.parquet"
        part = pq.read_table(path)
        for name in names:
            part = part.set_column(part.column_names.index(name), name, pa.nulls(len(part)))
        pq.write_table(part, path)
    kinds = {"a": "number", "town": "text", "day": "date", "y": "number", "kind": "text", "none": "text"}
    assert open_shards(folder).columns.items() >= kinds.items()
    frame, third = read_frame(folder), ROWS // 3
    assert np.isnan(frame.columns["a"][:third]).all()
    assert frame.columns["a"][third:].tolist() == table["a"][third:].tolist()
    assert frame.columns["town"].tolist() == [""] * third + table["town"][third:]
    assert np.isnan(frame.columns["day"]).tolist() == [False] * third + [True] * third + [False] * third
    assert np.isnan(frame.columns["y"][-third:]).all()
    assert frame.columns["kind"].tolist() == table["kind"][:-third] + [""] * third


def test_shards_with_other_columns(tmp_path, columns, write_shards):
    folder = write_shards(tmp_path / "data", columns())
    pq.write_table(pa.table({"a": ["x"], "b": [1.0], "new": [1]}), folder / "part-3.parquet")
    with pytest.raises(InputError) as error:
        open_shards(folder)
    assert "part-3.parquet has other columns than" in str(error.value)
    assert "y is missing" in str(error.value)
    assert "new is new" in str(error.value)
    assert "a is text, not number" in str(error.value)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_damaged_files_are_one_error_that_names_them(tmp_path, suffix, columns, write_shards):
    """Cut short, without its end, empty, or something else."""
    folder = write_shards(tmp_path / "data", columns(), suffix=suffix)
    path = folder / f"part-1{suffix}"
    content = path.read_bytes()
    for bad in [b"", b"PAR1", content[:-1], content[: len(content) // 2], b"x" * len(content), content[5:]]:
        path.write_bytes(bad)
        with pytest.raises(InputError, match=rf"part-1{suffix}"):
            list(frames(open_shards(folder), ["a"]))


def test_noise_in_pages_with_checksums_is_always_noticed(tmp_path, columns):
    path, random, said = tmp_path / "t.parquet", np.random.default_rng(0), []
    pq.write_table(pa.table(columns(600)), path, row_group_size=100, write_page_checksum=True)
    content = path.read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")  # where the footer begins
    for _ in range(40):
        noisy = bytearray(content)
        start = int(random.integers(4, end - 8))
        noisy[start : start + 8] = random.bytes(8)
        path.write_bytes(bytes(noisy))
        with pytest.raises(InputError) as error:
            list(frames(open_shards(path), list(columns(10))))
        said.append(str(error.value))
    assert all("t.parquet cannot be read as Parquet: it is damaged" in text for text in said)


def test_a_shard_that_disappears_or_changes_while_it_is_read(tmp_path, columns, write_shards):
    folder = write_shards(tmp_path / "data", columns())
    table = open_shards(folder)
    parts = frames(table, ["a"])
    next(parts)
    path = folder / "part-2.parquet"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(InputError, match=r"part-2\.parquet is not there any more\. Put it back.*resume=True"):
        list(parts)
    path.write_bytes(content + b" ")
    with pytest.raises(InputError, match=r"part-2\.parquet has changed while it was being read"):
        list(frames(table, ["a"]))
    path.write_bytes(content)
    assert sum(len(frame) for frame in frames(open_shards(folder), ["a"])) == ROWS


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("how", ["in place", "by an older file"])
def test_a_shard_that_is_replaced_by_one_of_the_same_size_has_changed(tmp_path, columns, write_shards, suffix, how):
    folder = write_shards(tmp_path / "data", columns(), suffix=suffix)
    table, path = open_shards(folder), folder / f"part-1{suffix}"
    other, status = path.with_name("_other"), path.stat()
    parts = frames(table, ["a"])
    next(parts)
    other.write_bytes(path.read_bytes())
    if how == "in place":
        path.write_bytes(other.read_bytes())
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))  # whatever the clock's step
    else:
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns - 1))
        other.replace(path)
    assert path.stat().st_size == status.st_size
    with pytest.raises(InputError, match=rf"part-1{suffix} has changed while it was being read: it was written anew"):
        list(parts)
    assert open_shards(folder).sha256 == table.sha256  # a resume goes by the content


def test_the_fingerprint_knows_names_layout_and_content(tmp_path, columns, write_shards):
    same_data = [write_shards(tmp_path / name, columns()) for name in ("one", "two")]
    others = [
        write_shards(tmp_path / "three", columns(seed=1)),
        write_shards(tmp_path / "four", columns(), group=500),
        write_shards(tmp_path / "five", columns(), shards=2),
    ]
    first, second, *rest = [open_shards(folder).sha256 for folder in same_data + others]
    assert first == second
    assert len({first, *rest}) == 4


def test_nothing_to_read(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nor a folder of Parquet or Arrow files"):
        open_shards(tmp_path / "empty")
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "none.parquet")
    with pytest.raises(InputError, match="has no rows"):
        open_shards(tmp_path / "none.parquet")
