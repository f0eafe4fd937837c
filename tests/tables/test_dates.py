"""Dates, times and flags: the same numbers from every kind of file."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import InputError
from gradsieve.files.fit import fit_file, predict_file
from gradsieve.tables.dates import PER_DAY, days, iso_days
from gradsieve.tables.encoding import CategoryColumn, NumberColumn
from gradsieve.tables.model_folder import load_model
from gradsieve.tables.reading import read_frame

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

ROWS = 200
START = datetime.datetime(2024, 1, 1)
MOMENTS = [START + datetime.timedelta(hours=7 * row) for row in range(ROWS)]
AMOUNTS = [float(row % 50) for row in range(ROWS)]


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def csv(path, **columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


KINDS = [
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "America/New_York"),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_instant_is_the_same_number_in_every_unit(tmp_path, kind):
    table = pa.table({"when": pa.array([*MOMENTS, None], pa.timestamp("us")).cast(pa.timestamp("ns")).cast(kind)})
    pq.write_table(table, tmp_path / "t.parquet")
    seconds = [(moment - datetime.datetime(1970, 1, 1)).total_seconds() for moment in MOMENTS]
    found = read_frame(tmp_path / "t.parquet").columns["when"]
    np.testing.assert_array_equal(found, [*np.array(seconds) / 86_400, np.nan])


def test_days_times_and_durations_are_in_days(tmp_path):
    noon, day = datetime.time(12), datetime.date(1970, 1, 11)
    path = parquet(
        tmp_path / "t.parquet",
        d32=pa.array([day, None], pa.date32()),
        d64=pa.array([day, None], pa.date64()),
        t32=pa.array([noon, None], pa.time32("s")),
        t64=pa.array([noon, None], pa.time64("ns")),
        long=pa.array([datetime.timedelta(days=2), None], pa.duration("us")),
    )
    found = {name: values.tolist()[0] for name, values in read_frame(path).columns.items()}
    assert found == {"d32": 10, "d64": 10, "t32": 0.5, "t64": 0.5, "long": 2}
    assert all(np.isnan(values[1]) for values in read_frame(path).columns.values())


def test_spans_of_months_are_words_since_they_have_no_length(tmp_path):
    path = tmp_path / "t.arrow"
    table = pa.table({"span": pa.array([pa.MonthDayNano([1, 2, 0]), None])})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    found = read_frame(path).columns["span"].tolist()
    assert "months=1" in found[0]
    assert not found[1]


def test_a_nanosecond_is_not_lost_to_rounding_before_the_division(tmp_path):
    instant = 1_700_000_000_123_456_000  # a float64 of so many nanoseconds is off by some
    for unit, per in (("ns", 1), ("us", 1000)):
        parquet(tmp_path / f"{unit}.parquet", when=pa.array([instant // per], pa.int64()).cast(pa.timestamp(unit)))
    (found,), (other,) = (read_frame(tmp_path / f"{unit}.parquet").columns["when"] for unit in ("ns", "us"))
    assert found == other == iso_days("2023-11-14T22:13:20.123456Z")


@pytest.mark.parametrize(
    ("cell", "days"),
    [
        ("1970-01-11", 10),
        ("1970-01-11 12:00", 10.5),
        ("1970-01-11T12:00:00Z", 10.5),
        ("1970-01-11T13:00:00.000+01:00", 10.5),
        ("1969-12-31T18:00:00-0600", 0),
        ("1969-12-31", -1),
        ("9999-12-31", 2932896),
        ("1970-02-30", None),
        ("1970-01-11T25:00", None),
        ("19700111", None),
        ("1970-01", None),
        ("11.01.1970", None),
    ],
)
def test_iso_dates(cell, days):
    assert iso_days(cell) == days


def test_a_model_reads_dates_and_flags_in_any_kind_of_file(tmp_path):
    """Fitted to timestamps in nanoseconds and true types, asked with others and with text."""
    flags = [row % 3 == 0 for row in range(ROWS)]
    when = pa.array(MOMENTS, pa.timestamp("us"))
    path = parquet(tmp_path / "ns.parquet", when=when.cast(pa.timestamp("ns")), flag=flags, y=AMOUNTS)
    fit_file(path, ["y"], tmp_path / "m", epochs=2, device="cpu")
    assert all(isinstance(column, NumberColumn) for column in load_model(tmp_path / "m").encoding.columns)
    expected = predict_file(tmp_path / "m", path)
    for other in (
        parquet(tmp_path / "us.parquet", when=when, flag=flags),
        csv(tmp_path / "a.csv", when=MOMENTS, flag=flags),
        csv(
            tmp_path / "b.csv", when=[f"{each.isoformat()}Z" for each in MOMENTS], flag=[str(f).lower() for f in flags]
        ),
    ):
        assert predict_file(tmp_path / "m", other) == expected
    fit_file(
        csv(tmp_path / "c.csv", when=MOMENTS, flag=flags, y=AMOUNTS), ["y"], tmp_path / "n", epochs=2, device="cpu"
    )
    assert (tmp_path / "n" / "rows.csv").read_bytes() == (tmp_path / "m" / "rows.csv").read_bytes()


def test_days_are_the_same_numbers_as_instants(tmp_path):
    days = [moment.date() for moment in MOMENTS]
    path = parquet(tmp_path / "t.parquet", when=pa.array(days, pa.date32()), y=AMOUNTS)
    fit_file(path, ["y"], tmp_path / "m", epochs=1, device="cpu")
    other = parquet(tmp_path / "o.parquet", when=pa.array(days, pa.date32()).cast(pa.timestamp("ms")))
    assert predict_file(tmp_path / "m", other) == predict_file(tmp_path / "m", path)


def test_a_cell_that_is_no_date_among_dates_is_the_one_that_is_named(tmp_path):
    fit_file(csv(tmp_path / "t.csv", when=MOMENTS, y=AMOUNTS), ["y"], tmp_path / "m", epochs=1, device="cpu")
    new = csv(tmp_path / "new.csv", when=["2024-01-01", "", "yesterday"])
    with pytest.raises(InputError, match=r"line 4, column when: 'yesterday' is .* as dates, such as 2024-02-29"):
        predict_file(tmp_path / "m", new)


@pytest.mark.parametrize("name", ["when", "flag"])
def test_dates_and_flags_that_a_typed_file_has_as_text_are_called_so(tmp_path, name):
    cells = {"when": MOMENTS, "flag": [row % 3 == 0 for row in range(ROWS)]}[name]
    fit_file(csv(tmp_path / "t.csv", **{name: cells}, y=AMOUNTS), ["y"], tmp_path / "m", epochs=1, device="cpu")
    new = parquet(tmp_path / "new.parquet", **{name: ["", *map(str, cells)]})
    with pytest.raises(InputError, match=f"row 2, column {name}: .* is text, but .* give the column a type"):
        predict_file(tmp_path / "m", new)


def test_a_model_of_dates_does_not_read_numbers_nor_one_of_numbers_dates(tmp_path):
    """Nor does one from before dates had a unit, which did not say that it had learnt any."""
    when = pa.array(MOMENTS, pa.timestamp("us"))
    dates = parquet(tmp_path / "dates.parquet", when=when, y=AMOUNTS)
    plain = parquet(tmp_path / "plain.parquet", when=when.cast(pa.int64()), y=AMOUNTS)
    empty = parquet(tmp_path / "empty.parquet", when=pa.nulls(9, pa.float64()))
    for name, path in (("d", dates), ("p", plain)):
        fit_file(path, ["y"], tmp_path / name, epochs=1, device="cpu")
        assert len(predict_file(tmp_path / name, empty).splitlines()) == 10
    with pytest.raises(InputError, match="column when holds numbers, but the model knows it as dates"):
        predict_file(tmp_path / "d", plain)
    with pytest.raises(InputError, match="column when holds dates, but the model knows it as numbers"):
        predict_file(tmp_path / "p", csv(tmp_path / "t.csv", when=MOMENTS))


def test_shards_of_other_units_are_one_table(tmp_path):
    when = pa.array(MOMENTS, pa.timestamp("us"))
    for name, kind in (("a", "ns"), ("b", "ms"), ("c", "us")):
        parquet(tmp_path / f"{name}.parquet", when=when.cast(pa.timestamp(kind)))
    found = read_frame(tmp_path).columns["when"].reshape(3, -1)
    assert (found == found[0]).all()


@pytest.mark.parametrize(
    ("other", "kind"),
    [([1] * 9, "number"), ([datetime.time(1)] * 9, "time"), ([datetime.timedelta(1)] * 9, "duration")],
)
def test_shards_of_dates_and_of_others_do_not_mix(tmp_path, other, kind):
    parquet(tmp_path / "a.parquet", when=pa.array(MOMENTS, pa.timestamp("us")))
    parquet(tmp_path / "b.parquet", when=other)
    with pytest.raises(InputError, match=f"when is {kind}, not date"):
        read_frame(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "stream"])
def test_a_date_as_a_target(tmp_path, kind):
    """Refused, unless each is a class of its own."""
    days = [datetime.date(2024, 1, 1 + row % 2) for row in range(ROWS)]
    columns = {"x": [float(row % 2) for row in range(ROWS)], "day": days}
    path = (csv if kind == "csv" else parquet)(tmp_path / f"t.{kind.replace('stream', 'parquet')}", **columns)
    options = {"epochs": 2, "device": "cpu", "stream": kind == "stream"}
    with pytest.raises(InputError, match=r"target day holds dates, .* days since a day .* categorical='day'"):
        fit_file(path, ["day"], tmp_path / "m", **options)
    fit_file(path, ["day"], tmp_path / "m", categorical=["day"], **options)
    assert load_model(tmp_path / "m").targets.classes == ["2024-01-01", "2024-01-02"]


def test_dates_and_flags_stay_words_where_they_are_said_to_be_codes_or_classes(tmp_path):
    days = [f"2024-01-0{1 + row % 3}" for row in range(ROWS)]
    flags = [row % 2 == 0 for row in range(ROWS)]
    path = csv(tmp_path / "t.csv", day=days, x=AMOUNTS, flag=flags)
    fit_file(path, ["flag"], tmp_path / "m", categorical=["day"], epochs=1, device="cpu")
    model = load_model(tmp_path / "m")
    assert isinstance(model.encoding.columns[0], CategoryColumn)
    assert model.encoding.columns[0].categories == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert model.targets.classes == ["False", "True"]


def test_true_and_false_in_several_spellings_are_words(tmp_path):
    path = csv(tmp_path / "t.csv", flag=["True", "false", "yes", "no"] * 50, y=AMOUNTS)
    fit_file(path, ["y"], tmp_path / "m", epochs=1, device="cpu")
    assert load_model(tmp_path / "m").encoding.columns[0].categories == ["True", "false", "no", "yes"]


@given(st.lists(st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=50))
def test_days_are_the_same_to_the_last_bit(microseconds):
    units = np.array(microseconds, dtype=np.int64)
    assert (days(units, PER_DAY["us"]) == days(units * 1000, PER_DAY["ns"])).all()
