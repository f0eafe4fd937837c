"""Classes that look like numbers: told apart as the file tells them apart, or refused."""

import csv

import numpy as np
import pytest

from gradsieve.errors import InputError
from gradsieve.files.fit import fit_file, predict_file
from gradsieve.tables.model_folder import load_model

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

LARGE = [9007199254740992, 9007199254740993]  # one float64
WAYS = ["csv", "npz", "parquet", "stream"]


def write(path, columns):
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([[*columns], *zip(*columns.values(), strict=True)])
    elif path.suffix == ".npz":
        np.savez(path, **columns)
    else:
        pq.write_table(pa.table(columns), path)
    return path


def fit(tmp_path, way, codes, **options):
    """A fit of codes that an input tells apart; the classes that the model knows, and that it predicts."""
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / f"t.{way.replace('stream', 'parquet')}"
    different = list(dict.fromkeys(codes))
    write(path, {"x": [float(different.index(code)) for code in codes], "y": codes})
    fit_file(path, ["y"], tmp_path / "m", epochs=20, device="cpu", stream=way == "stream", **options)
    predicted = {line.split(",")[1] for line in predict_file(tmp_path / "m", path).splitlines()[1:]}
    given = {row["given"] for row in csv.DictReader((tmp_path / "m" / "rows.csv").open())}
    assert predicted == given
    return load_model(tmp_path / "m").targets.classes, given


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("task", [None, "classification"])
def test_numbers_that_a_float_cannot_tell_apart_are_no_classes(tmp_path, way, task):
    with pytest.raises(InputError, match=r"column y: as a number, 9007199254740992 .* Give categorical='y'") as error:
        fit(tmp_path, way, LARGE * 60, task=task)
    assert ("line 2" if way == "csv" else "row 1") in str(error.value)
    names = [str(code) for code in LARGE]
    assert fit(tmp_path / "codes", way, LARGE * 60, categorical=["y"], task=task) == (names, set(names))


def test_codes_of_text_are_never_merged(tmp_path):
    names = [str(code) for code in LARGE]
    assert fit(tmp_path, "parquet", names * 60, task="classification") == (names, set(names))


def test_unsigned_codes_above_all_signed_ones(tmp_path):
    codes = np.array([2**64 - 1, 2**64 - 2] * 60, dtype=np.uint64)
    names = [str(2**64 - 2), str(2**64 - 1)]
    assert fit(tmp_path, "npz", codes, categorical=["y"]) == (names, set(names))


@pytest.mark.parametrize("way", ["csv", "parquet", "stream"])
def test_classes_that_are_codes_are_as_written(tmp_path, way):
    names = ["01", "1", "1.0"]
    assert fit(tmp_path, way, names * 40, categorical=["y"]) == (names, set(names))
    assert fit(tmp_path / "numbers", way, [*names, "2"] * 40, task="classification")[0] == ["1", "2"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("targets", "options", "says"),
    [(["y"], {"task": "regression"}, "the task is regression"), (["x", "y"], {}, "2 targets must be numbers")],
)
def test_amounts_are_no_codes(tmp_path, way, targets, options, says):
    x = [row / 7 for row in range(60)]
    path = write(tmp_path / f"t.{way.replace('stream', 'parquet')}", {"x": x, "y": x[::-1], "z": x})
    with pytest.raises(InputError, match=f"categorical names a target.*{says}"):
        fit_file(path, targets, tmp_path / "m", categorical=["y"], stream=way == "stream", **options)


def test_codes_among_the_inputs_that_a_number_cannot_hold(tmp_path):
    path = write(tmp_path / "t.parquet", {"code": LARGE * 30, "y": [0.5, 1.5] * 30})
    with pytest.raises(InputError, match=r"row 1, column code: .* Write code as text"):
        fit_file(path, ["y"], tmp_path / "m", task="regression", categorical=["code"])


@pytest.mark.parametrize("way", WAYS)
def test_classes_that_differ_in_capitals_alone_stay_apart_and_are_told(tmp_path, way):
    told = []
    classes, _ = fit(tmp_path, way, ["Yes", "no", "yes", "nein"] * 60, note=told.append)
    assert classes == ["Yes", "nein", "no", "yes"]
    (note,) = told
    assert note.startswith("'Yes' and 'yes' are different classes: they differ in capitals alone")
    fit(tmp_path / "other", way, ["Yes", "no", "Ja", "nein"] * 60, note=told.append)
    assert len(told) == 1
