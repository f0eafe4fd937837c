"""Folders that are named by a column: part=1/a.parquet."""

import csv
import datetime

import numpy as np
import pytest

from gradsieve.errors import InputError
from gradsieve.files.fit import fit_file, predict_file
from gradsieve.tables.model_folder import load_model
from gradsieve.tables.reading import read_frame
from gradsieve.tables.shard_frames import frames
from gradsieve.tables.shards import open_shards

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=40)
    else:
        table = pa.table(columns)
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=40)
    return path


@pytest.fixture(params=["parquet", "arrow"])
def folder(request, tmp_path):
    """Two years, as numbers, by two towns, one with a name that must be quoted, by two days; the amount follows."""
    random = np.random.default_rng(0)
    for year in (2023, 2024):
        for town in ("Rome", "New%20York"):
            for day in ("2024-01-01", "__HIVE_DEFAULT_PARTITION__"):
                x = random.normal(size=60)
                place = tmp_path / "data" / f"year={year}" / f"town={town}" / f"day={day}"
                write(place / f"a.{request.param}", x=x, y=x + 10 * (year - 2023) + 5 * (town == "Rome"))
    return tmp_path / "data"


def test_the_names_of_folders_are_columns(folder):
    table, frame = open_shards(folder), read_frame(folder)
    assert table.columns == {"x": "number", "y": "number", "year": "number", "town": "text", "day": "date"}
    assert frame.columns["year"].tolist() == [2023.0] * 240 + [2024.0] * 240
    assert frame.columns["town"].tolist() == (["New York"] * 120 + ["Rome"] * 120) * 2
    day = (datetime.date(2024, 1, 1) - datetime.date(1970, 1, 1)).days
    np.testing.assert_array_equal(frame.columns["day"], ([day] * 60 + [np.nan] * 60) * 4)
    for names in (["year"], ["town", "x"], ["y"]):
        parts = list(frames(table, names))
        for name in names:
            np.testing.assert_array_equal(np.concatenate([each.columns[name] for each in parts]), frame.columns[name])


@pytest.mark.parametrize("stream", [True, False])
def test_they_are_learnt_from_and_predicted(folder, tmp_path, stream):
    options = {"device": "cpu", "stream": stream}
    fit_file(folder, ["y"], tmp_path / "m", epochs=30, drop_rate=0.05, **options)
    assert {*load_model(tmp_path / "m").encoding.names} == {"x", "year", "town", "day"}
    rows = list(csv.DictReader((tmp_path / "m" / "rows.csv").open()))
    off = [abs(float(row["given"]) - float(row["predicted"])) for row in rows]
    assert np.median(off) < 1
    with pytest.raises(InputError, match="no column 'year'"):
        predict_file(tmp_path / "m", next(folder.rglob("a.*")))
    fit_file(folder, ["year"], tmp_path / "n", epochs=1, **options)
    assert load_model(tmp_path / "n").targets.classes == ["2023", "2024"]


def test_a_column_of_the_files_goes_before_the_name_of_their_folder(tmp_path):
    write(tmp_path / "part=1" / "a.parquet", part=[7.0, 8.0])
    assert read_frame(tmp_path).columns["part"].tolist() == [7, 8]


def test_folders_with_and_without_the_column_do_not_mix(tmp_path):
    write(tmp_path / "part=1" / "a.parquet", x=[7.0, 8.0])
    write(tmp_path / "z" / "a.parquet", x=[7.0, 8.0])
    with pytest.raises(InputError, match="part is missing"):
        read_frame(tmp_path)


def test_codes_in_the_names_of_folders_are_as_written(tmp_path):
    for code in ("01", "1"):
        write(tmp_path / "data" / f"y={code}" / "a.parquet", x=np.arange(50.0) + 100 * len(code))
    fit_file(tmp_path / "data", ["y"], tmp_path / "m", categorical=["y"], epochs=1, device="cpu")
    assert load_model(tmp_path / "m").targets.classes == ["01", "1"]


def test_a_folder_that_is_a_link_is_read(tmp_path):
    for number in range(2):
        write(tmp_path / f"{number}" / "a.parquet", x=[float(number)] * 3)
    (tmp_path / "table").mkdir()
    for number in range(2):
        (tmp_path / "table" / f"part={number}").symlink_to(tmp_path / f"{number}")
    assert read_frame(tmp_path / "table").columns["part"].tolist() == [0, 0, 0, 1, 1, 1]
