"""gradsieve fit and predict: the files of users, from tables to folders of images, and what may be wrong with them."""

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.preprocessing import OneHotEncoder

from gradsieve.errors import CheckpointError, InputError, RunFolderError
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.decorrelating import decorrelation
from gradsieve.estimators.scaling import robust_scale, scale_inputs
from gradsieve.files.fit import fit_file, predict_file
from gradsieve.tables import encoding, model_folder
from gradsieve.tables.cells import safe_cell, unquoted
from gradsieve.tables.encoding import Encoding, learn_categories, learn_columns, learn_number
from gradsieve.tables.frame import Frame
from gradsieve.tables.model_folder import load_model, save_model
from gradsieve.tables.reading import read_frame
from gradsieve.tables.targets import infer_task

EXPAND = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "expand.py"


def write_csv(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def homes(rows=300, seed=0):
    """Homes with numbers, words and missing cells; the price follows size and town."""
    random = np.random.default_rng(seed)
    size, town = random.uniform(20, 200, rows), random.choice(["Rome", "Oslo", "Bonn"], rows)
    worth = {"Rome": 3.0, "Oslo": 5.0, "Bonn": 2.0}
    price = [float(s * worth[t]) for s, t in zip(size, town, strict=True)]
    cells = [[f"{s:.2f}" if random.random() > 0.1 else "", str(t)] for s, t in zip(size, town, strict=True)]
    return [
        [*cell, f"{p:.2f}", f"{2 * p:.2f}", "cheap" if p < 300 else "dear"]
        for cell, p in zip(cells, price, strict=True)
    ]


HEADER = ["size", "town", "price", "rent", "class"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("homes") / "homes.csv", HEADER, homes())


@pytest.fixture(scope="module")
def model(table, tmp_path_factory):
    """A folder for tests that only read it."""
    folder = tmp_path_factory.mktemp("model") / "model"
    fit_file(table, ["price"], folder, ignore=["rent", "class"], epochs=40, drop_rate=0.05)
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """A table with correlated columns, and a folder, for tests that only read them."""
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("together")
    x = random.normal(size=(200, 1)) + 0.1 * random.normal(size=(200, 4))
    table = write_csv(path / "t.csv", ["a", "b", "c", "d", "y"], np.column_stack([x, x[:, 0] - x[:, 1]]).tolist())
    fit_file(table, ["y"], path / "m", epochs=5)
    return table, path / "m"


def test_fit_and_predict_by_the_command(gradsieve, table, tmp_path):
    fit = gradsieve("fit", table, "--target", "class", "--ignore", "price", "--ignore", "rent", "--out", tmp_path / "m")
    assert fit.code == 0, fit.err
    assert "classification of class: 300 rows, 60 dropped" in fit.out
    done = gradsieve("predict", tmp_path / "m", table, "--out", tmp_path / "new.csv")
    assert done.code == 0, done.err
    predicted = [row["class"] for row in read(tmp_path / "new.csv")]
    assert np.mean([p == row["class"] for p, row in zip(predicted, read(table), strict=True)]) > 0.8
    assert gradsieve("predict", tmp_path / "m", table).out.startswith("row,class,probability\n1,")


@pytest.mark.parametrize(
    ("target", "header"), [("probability", "row,probability,probability_"), ("row", "row_,row,probability")]
)
def test_targets_named_as_the_columns_beside_them(tmp_path, target, header):
    x = np.random.default_rng(0).normal(size=60)
    table = write_csv(tmp_path / "t.csv", ["x", target], np.column_stack([x, x > 0]).tolist())
    fit_file(table, [target], tmp_path / "m", task="classification", epochs=1)
    assert predict_file(tmp_path / "m", table).splitlines()[0] == header


def test_paths_and_a_single_column_may_be_plain_text(table, tmp_path):
    options = {"ignore": "rent", "categorical": "town", "epochs": 2, "device": "cpu"}
    fit_file(str(table), "price", str(tmp_path / "text"), **options)
    fit_file(table, ["price"], tmp_path / "paths", **options | {"ignore": ["rent"], "categorical": ["town"]})
    said = predict_file(str(tmp_path / "text"), str(table), str(tmp_path / "p.csv"))
    assert said == predict_file(tmp_path / "paths", table)


def test_options_of_the_method_reach_it(gradsieve, table, tmp_path):
    fit = ["fit", table, "--target", "class", "--ignore", "price", "--ignore", "rent", "--epochs", 2, "--device", "cpu"]
    done = gradsieve(*fit, "--method-option", "balanced=true", "--out", tmp_path / "b")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "b" / "model.json").read_text())["plan"]["method_options"] == {"balanced": True}
    assert "Did you mean 'balanced'" in gradsieve(*fit, "--method-option", "balnced=true", "--out", tmp_path / "c").err
    assert not (tmp_path / "c").exists()


def test_json_is_all_that_is_printed(gradsieve, table, tmp_path):
    done = gradsieve("fit", table, "--target", "price", "--epochs", 2, "--seed", 3, "--json", "--out", tmp_path / "m")
    summary = json.loads(done.out)
    assert summary["task"] == "regression"
    assert summary["seed"] == 3
    assert "epoch 2/2" in done.err


def test_rows_csv_lists_the_suspicious_first(table, model):
    rows, given = read(model / "rows.csv"), read(table)
    assert len(rows) == 300
    assert [*rows[0]] == ["row", "score", "kept", "given", "predicted"]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert [row["kept"] for row in rows] == ["0"] * 15 + ["1"] * 285
    assert all(float(row["given"]) == float(given[int(row["row"]) - 1]["price"]) for row in rows)


def test_the_folder_holds_no_code_and_repeats_bit_for_bit(table, model, tmp_path):
    assert sorted(path.name for path in model.iterdir()) == ["model.json", "model.safetensors", "rows.csv"]
    fit_file(table, ["price"], tmp_path / "m", ignore=["rent", "class"], epochs=40, drop_rate=0.05)
    for name in ("model.safetensors", "rows.csv"):
        assert (tmp_path / "m" / name).read_bytes() == (model / name).read_bytes()
    assert json.loads((model / "model.json").read_text())["versions"]["torch"]


def test_several_targets(table, tmp_path):
    fit_file(table, ["price", "rent"], tmp_path / "m", ignore=["class"], epochs=30, drop_rate=0.05)
    text = predict_file(tmp_path / "m", table)
    price, rent = np.array([line.split(",")[1:] for line in text.splitlines()[1:]], dtype=float).T
    assert np.median(np.abs(rent / price - 2)) < 0.1
    assert "given price,given rent,predicted price,predicted rent" in (tmp_path / "m" / "rows.csv").read_text()


def test_columns_are_found_by_name_and_extra_ones_ignored(model, tmp_path):
    rows = homes()
    straight = write_csv(tmp_path / "a.csv", HEADER, rows)
    mixed = write_csv(tmp_path / "b.csv", ["new", "town", "size"], [["x", row[1], row[0]] for row in rows])
    assert predict_file(model, straight) == predict_file(model, mixed)


def test_words_never_seen_and_cells_left_empty_have_predictions(model, tmp_path):
    new = write_csv(tmp_path / "new.csv", ["size", "town"], [["80", "Atlantis"], ["", "Rome"], ["", ""]])
    values = [float(line.split(",")[1]) for line in predict_file(model, new).splitlines()[1:]]
    assert np.isfinite(values).all()


def test_missing_columns_are_one_error_with_the_nearest_name(model, tmp_path):
    new = write_csv(tmp_path / "new.csv", ["sizes", "place"], [["80", "Rome"]])
    with pytest.raises(InputError, match=r"no column 'size'. Did you mean 'sizes'.* 2 columns are missing: size, town"):
        predict_file(model, new)


def test_text_where_numbers_are_due_at_predict_time(model, tmp_path):
    new = write_csv(tmp_path / "new.csv", ["size", "town"], [["80", "Rome"], ["big", "Rome"]])
    with pytest.raises(InputError, match=r"line 3, column size: 'big' is not a finite number"):
        predict_file(model, new)


@pytest.mark.parametrize(
    ("header", "rows", "options", "says"),
    [
        (["a", "y"], [[i, i % 7 + 0.5] for i in range(50)], {"targets": ["yy"]}, "Did you mean 'y'?"),
        (["a", "y"], [[i, 5.5] for i in range(50)], {}, "the target y is 5.5 in all 50 rows"),
        (["a", "y"], [[i, "yes"] for i in range(50)], {}, "one class, 'yes'"),
        (["a", "y"], [[i, f"-{i},96"] for i in range(50)], {}, "another spelling, such as '-0,96'. Write them as 20.5"),
        (["a", "y"], [[i, f"{i % 3},5"] for i in range(50)], {"task": "regression"}, "spelling, such as '0,5'"),
        (["a", "y"], [[i, f"{i + 1},500.5"] for i in range(50)], {}, "another spelling, such as '1,500.5'"),
        (["a", "y"], [[i, f"${i + 1},500.00"] for i in range(50)], {}, "no % or currency sign"),
        (["a", "y"], [[i, f"name {i}"] for i in range(1000)], {}, "1000 different values in 1000 rows"),
        (["a", "y"], [[i, i + 0.5] for i in range(50)] + [[1, "x"]], {}, "line 52, column y: 'x'"),
        (["a", "y"], [[i, i + 0.5] for i in range(50)] + [["x", 1.5]], {}, "line 52, column a: 'x'"),
        (["a", "y"], [[i, i + 0.5] for i in range(50)] + [["inf", 1.5]], {}, "line 52, column a: 'inf'"),
        (["a", "y"], [[i, "a"] for i in range(25)] + [[i, "b"] for i in range(25)], {"task": "regression"}, "line 2"),
        (["a", "y"], [[1, i + 0.5] for i in range(50)], {}, "no column is left"),
        (["a", "y"], [[i, ""] for i in range(50)], {}, "0 rows have a value in y"),
        (["a", "y"], [[i, i + 0.5] for i in range(50)], {"targets": []}, "targets is missing: which column"),
        (["a", "y"], [[i, i + 0.5] for i in range(50)], {"ignore": ["y"]}, "ignore names a target: y."),
        (["a", "y"], [[i, i + 0.5] for i in range(50)], {"task": "ranking"}, "no task 'ranking'"),
        (["a", "y"], [[i, i + 0.5] for i in range(50)], {"method": "prl"}, "no method 'prl'"),
        (["a", "y"], [[i, i + 0.5] for i in range(50)], {"drop_rate": 1.5}, "drop_rate is 1.5"),
        (["a", "y", "z"], [[i, "a", "b"] for i in range(50)], {"targets": ["y", "z"]}, "2 targets must all be numbers"),
        (
            ["a", "y", "z"],
            [[i, "a", "b"] for i in range(50)],
            {"targets": ["y", "z"], "task": "classification"},
            "names 2 columns",
        ),
    ],
)
def test_bad_tables(header, rows, options, says, tmp_path):
    table = write_csv(tmp_path / "bad.csv", header, rows)
    with pytest.raises(InputError) as error:
        fit_file(table, options.pop("targets", ["y"]), tmp_path / "m", epochs=1, **options)
    assert says in str(error.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", ["data.txt", "none.csv"])
def test_files_that_cannot_be_read(name, tmp_path):
    (tmp_path / "data.txt").write_text("a,y\n1,2\n")
    with pytest.raises(InputError):
        fit_file(tmp_path / name, ["y"], tmp_path / "m")


def test_nothing_is_written_over(table, model, tmp_path):
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    with pytest.raises(RunFolderError, match="nothing is written over"):
        fit_file(table, ["price"], model, epochs=1)
    (tmp_path / "taken.csv").write_text("mine")
    with pytest.raises(RunFolderError, match="nothing is written over"):
        predict_file(model, table, tmp_path / "taken.csv")
    assert (tmp_path / "taken.csv").read_text() == "mine"
    assert before == {path.name: path.read_bytes() for path in model.iterdir()}


@pytest.mark.parametrize("name", ["rows.csv", "model.safetensors", "model.json"])
def test_a_full_disk_leaves_nothing_in_the_way_of_another_try(table, tmp_path, full_disk, name):
    out = tmp_path / "m"
    with full_disk(name), pytest.raises(RunFolderError, match=rf"{name} could not be written .* try again"):
        fit_file(table, ["price"], out, epochs=1)
    assert not out.exists()
    fit_file(table, ["price"], out, epochs=1)
    assert load_model(out)


def test_no_damage_goes_unnoticed(model, tmp_path):
    """Bit flips in and truncations of both files, and other JSON."""
    random = np.random.default_rng(0)
    expected = json.loads((model / "model.json").read_text())
    for name in ("model.json", "model.safetensors"):
        content = (model / name).read_bytes()
        damaged = [content[: int(random.integers(len(content)))] for _ in range(8)]
        for _ in range(60):
            flipped = bytearray(content)
            flipped[random.integers(len(content))] ^= 1 << random.integers(8)
            damaged.append(bytes(flipped))
        damaged += [b"", b"[]", b"{}", b'{"format": 1}', b"null"]
        for number, bad in enumerate(damaged):
            folder = tmp_path / f"{name}-{number}"
            shutil.copytree(model, folder)
            (folder / name).write_bytes(bad)
            try:
                load_model(folder)
            except CheckpointError:
                continue
            # A flipped bit in white space, or in the escape of a character, does not change the content.
            assert name == "model.json"
            assert json.loads(bad) == expected


def test_a_folder_that_is_no_model(tmp_path, table):
    with pytest.raises(RunFolderError, match="not a model folder"):
        predict_file(tmp_path, table)


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "'=1", "''-cmd", "'-5"])
def test_text_that_a_spreadsheet_would_run_is_neutralised(text):
    assert safe_cell(text) == f"'{text}"
    assert unquoted(safe_cell(text)) == text


@pytest.mark.parametrize(("value", "cell"), [(-1.5, "-1.5"), ("-1.5", "-1.5"), ("+3", "+3"), (7, "7"), ("a=b", "a=b")])
def test_numbers_stay_numbers(value, cell):
    assert safe_cell(value) == unquoted(cell) == cell


def test_hostile_classes_are_neutralised_in_what_is_written(tmp_path):
    rows = [[i % 2 + 0.1 * (i % 5), "=cmd()" if i % 2 else "@x"] for i in range(60)]
    table = write_csv(tmp_path / "t.csv", ["a", "y"], rows)
    fit_file(table, ["y"], tmp_path / "m", epochs=20)
    assert {row["given"] for row in read(tmp_path / "m" / "rows.csv")} == {"'=cmd()", "'@x"}
    assert ",'=cmd()," in predict_file(tmp_path / "m", table)


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (np.arange(100) % 3, "classification"),
        (np.arange(100) % 3 + 0.5, "regression"),
        (np.arange(100), "regression"),
        (np.array(["a", "b"] * 50, dtype=object), "classification"),
        (np.array([0, 1]), "classification"),
    ],
)
def test_the_task_follows_from_the_target(values, task):
    values = values if values.dtype == object else values.astype(float)
    assert infer_task(Frame(Path("x"), {"y": values}), ["y"]) == task


def test_categories_are_those_of_scikit_learns_encoder():
    random = np.random.default_rng(0)
    words = np.array([f"w{int(n)}" for n in random.exponential(30, 2000)], dtype=object)
    frame = Frame(Path("x"), {"w": words})
    column = learn_categories(frame, "w", print)
    theirs = OneHotEncoder(
        max_categories=encoding.MOST_CATEGORIES, handle_unknown="infrequent_if_exist", sparse_output=False
    ).fit(words[:, None])
    assert column.has_other
    # Of equally rare words, each encoder may give another one a column: compare the sums of the columns.
    ours, expected = Encoding([column]).apply(frame), theirs.transform(words[:, None])
    assert ours.shape == expected.shape
    assert (ours.sum(1) == 1).all()
    np.testing.assert_array_equal(np.sort(ours.sum(0)), np.sort(expected.sum(0)))
    new = Frame(Path("x"), {"w": np.array(["never"], dtype=object)})
    np.testing.assert_array_equal(Encoding([column]).apply(new), theirs.transform([["never"]]))


def test_missing_numbers_are_the_median_and_say_so():
    frame = Frame(Path("x"), {"n": np.array([1.0, 2, 3, 4, 100, np.nan])})
    column = learn_number(frame, "n", print)
    assert Encoding([column]).apply(frame)[-1].tolist() == [0, 1]
    assert encoding.from_json(json.loads(json.dumps(encoding.to_json([column])))) == [column]


def test_columns_that_tell_nothing_are_left_out_with_a_note():
    names = {"id": np.array([f"r{i}" for i in range(9)], dtype=object), "one": np.ones(9), "n": np.arange(9.0) ** 2}
    notes = []
    columns = learn_columns(Frame(Path("x"), names), names, (), notes.append)
    assert [column.name for column in columns] == ["n"]
    assert len(notes) == 2


def test_codes_can_be_categories(tmp_path):
    table = write_csv(tmp_path / "t.csv", ["zip", "y"], [[i % 3 * 1000, [0.5, 9.5, 2.5][i % 3]] for i in range(90)])
    fit_file(table, ["y"], tmp_path / "m", categorical=["zip"], epochs=1)
    assert load_model(tmp_path / "m").encoding.columns[0].categories == ["0", "1000", "2000"]


WRITTEN = ["01", "1", "1.0"]  # three codes that are the same number


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    """A table whose target depends on codes that differ only in how they are written, and its model."""
    folder = tmp_path_factory.mktemp("coded")
    table = write_csv(folder / "t.csv", ["code", "y"], [[WRITTEN[i % 3], [-4, 0, 4][i % 3]] for i in range(300)])
    fit_file(table, ["y"], folder / "m", task="regression", categorical=["code"], epochs=30)
    return table, folder / "m"


def amounts(folder, table):
    return [float(line.split(",")[1]) for line in predict_file(folder, table).splitlines()[1:]]


def test_codes_are_kept_apart_as_they_are_written(coded, tmp_path):
    table, folder = coded
    assert load_model(folder).encoding.columns[0].categories == WRITTEN
    assert amounts(folder, table)[:3] == pytest.approx([-4, 0, 4], abs=1)
    # In a table of its own, and with spaces around, each code has the same prediction.
    for code, amount in zip(WRITTEN, amounts(folder, table), strict=False):
        alone = write_csv(tmp_path / f"{code}.csv", ["code"], [[f" {code} "]])
        assert amounts(folder, alone) == pytest.approx([amount], abs=1e-5)
    words = read_frame(write_csv(tmp_path / "new.csv", ["code"], [["001"], ["NA"]]), words={"code"})
    assert not load_model(folder).encoding.columns[0].encode(words, 4.0).any()  # never seen: none of the three


def test_a_number_is_the_code_that_it_could_have_been_written_as():
    numbers = Frame(Path("x"), {"n": np.array([1.0, 2.0, 3.5, np.nan])})
    for categories, expected in (
        (["1", "2", "3.5"], [0, 1, 2, 3]),
        (["01", "2.0", "3.50"], [0, 1, 2, 3]),
        (["", "1", "01"], [1, 3, 3, 0]),  # "1" is preferred to "01"
        (["001", "01", "2"], [3, 2, 3, 3]),  # 1 may be either "001" or "01": neither is taken
    ):
        column = encoding.CategoryColumn("n", categories, has_other=True, as_written=True)
        assert column.encode(numbers, 4.0).argmax(1).tolist() == expected


def test_codes_that_are_numbers_in_their_file_stay_numbers(tmp_path):
    """Codes from a Parquet or NPZ file are numbers: 1 matches however a later table writes it."""
    codes, y = np.arange(90) % 3, np.array([0.5, 9.5, 2.5])[np.arange(90) % 3]
    np.savez(tmp_path / "t.npz", code=codes, y=y)
    fit_file(tmp_path / "t.npz", ["y"], tmp_path / "m", task="regression", categorical=["code"], epochs=1)
    assert load_model(tmp_path / "m").encoding.columns[0].categories == ["0", "1", "2"]
    table = write_csv(tmp_path / "t.csv", ["code"], [["0"], ["01"], ["2.0"]])
    assert amounts(tmp_path / "m", table) == pytest.approx(amounts(tmp_path / "m", tmp_path / "t.npz")[:3], abs=1e-5)


def test_a_folder_from_before_codes_were_kept_apart_predicts_as_it_did(coded, tmp_path):
    """In such a folder, 01, 1 and 1.0 are one category."""
    table, folder = coded
    model = load_model(folder)
    (column,) = encoding.to_json(model.encoding.columns)
    del column["as_written"]
    columns = encoding.from_json([{**column, "categories": ["1", "2", "3"]}])
    save_model(tmp_path / "m", replace(model, encoding=replace(model.encoding, columns=columns)), {}, "")
    said = amounts(tmp_path / "m", table)
    assert said == [said[0]] * 300


@pytest.mark.parametrize("mark", ["-", "none"])
def test_a_mark_is_the_word_that_it_was_where_numbers_alone_are_beside_it(tmp_path, mark):
    """Among numbers alone the mark means a missing value, but the model knows the column as words."""
    rows = [[(mark, "1", "word")[i % 3], f"{i % 3 + 0.01 * (i % 7):.2f}"] for i in range(90)]
    fit_file(write_csv(tmp_path / "all.csv", ["a", "y"], rows), "y", tmp_path / "m", epochs=2)
    part = write_csv(tmp_path / "part.csv", ["a"], [[mark], ["1"]])
    whole = amounts(tmp_path / "m", tmp_path / "all.csv")
    assert amounts(tmp_path / "m", part) == pytest.approx(whole[:2], rel=1e-4)


def test_a_folder_from_before_a_spelling_was_a_number_knows_it_as_the_word_that_it_was(tmp_path):
    frame = read_frame(write_csv(tmp_path / "a.csv", ["a"], [["\u22121"], ["-"], ["2"]]), words=["a"])
    column = encoding.CategoryColumn("a", ["-", "2", "\u22121"], has_other=False)
    assert column.encode(frame, 3.0).argmax(1).tolist() == [2, 0, 1]


def test_a_target_among_the_codes_is_still_read_as_a_target(tmp_path):
    table = write_csv(tmp_path / "t.csv", ["a", "y"], [[i, i % 2] for i in range(60)])
    assert fit_file(table, ["y"], tmp_path / "m", categorical=["y"], epochs=1)["task"] == "classification"


def test_amounts_are_learnt_from_inputs_without_their_correlations(together):
    """The inputs that the estimators' functions make, and the same for every row in any company."""
    table, folder = together
    encoding, frame = load_model(folder).encoding, read_frame(table)
    raw = np.stack([frame.columns[name] for name in encoding.names], axis=1)
    scaled = scale_inputs(raw, robust_scale(raw))
    inputs = encoding.apply(frame)
    assert np.array_equal(inputs, decorrelation(scaled).apply(scaled))
    spread = [np.linalg.cond(np.cov(each.T)) for each in (scaled, inputs)]
    assert spread[1] < 0.1 * spread[0]
    alone = np.arange(len(frame)) == 17
    assert np.array_equal(encoding.apply(frame.take(alone)), inputs[alone])
    predicted = {row["row"]: row["predicted"] for row in read(folder / "rows.csv")}
    assert predict_file(folder, table).splitlines()[1:] == [
        f"{row},{predicted[row]}" for row in sorted(predicted, key=int)
    ]


def test_a_folder_from_before_inputs_were_decorrelated_predicts_as_it_did(together, tmp_path, monkeypatch):
    table, folder = together
    model, frame = load_model(folder), read_frame(table)
    before = replace(model, encoding=replace(model.encoding, decorrelation=None))
    monkeypatch.setattr(model_folder, "FORMAT", 1)
    save_model(tmp_path / "m", before, {}, "")
    outputs = mean_outputs(model.networks, before.encoding.apply(frame), "regression")
    values = [
        [float(cell) for cell in line.split(",")[1:]] for line in predict_file(tmp_path / "m", table).splitlines()[1:]
    ]
    assert np.array_equal(values, model.targets.scale.invert(outputs))
    assert predict_file(tmp_path / "m", table) != predict_file(folder, table)


def test_rows_without_a_target_are_left_out(tmp_path):
    rows = [[i, "" if i % 10 == 0 else i * 0.5] for i in range(100)]
    notes = []
    fit_file(write_csv(tmp_path / "t.csv", ["a", "y"], rows), ["y"], tmp_path / "m", epochs=1, note=notes.append)
    assert notes == ["10 rows are left out: they have no target"]
    assert {int(row["row"]) for row in read(tmp_path / "m" / "rows.csv")} == {i + 1 for i in range(100) if i % 10}


def test_npz(tmp_path):
    X, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "d.npz", x=X[:1000], y=y[:1000])
    np.savez(tmp_path / "new.npz", x=X[1000:1200])
    summary = fit_file(tmp_path / "d.npz", ["y"], tmp_path / "m", epochs=10)
    assert summary["task"] == "classification"
    assert load_model(tmp_path / "m").encoding.decorrelation is None  # classifiers do not decorrelate inputs
    text = predict_file(tmp_path / "m", tmp_path / "new.npz")
    predicted = [int(line.split(",")[1]) for line in text.splitlines()[1:]]
    assert np.mean(predicted == y[1000:1200]) > 0.8


def test_the_command_to_go_on_with_is_one_that_a_shell_reads(gradsieve, table, tmp_path):
    out = tmp_path / "my model"
    done = gradsieve("fit", table, "--target", "class", "--ignore", "price", "--epochs", "1", "--out", out)
    assert f"gradsieve predict '{out}' FILE" in done.out


def test_predictions_in_a_file_are_those_that_are_returned(tmp_path):
    table = tmp_path / "t.csv"
    names = ("é\r\n1", "ü")
    with open(table, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["x", "y"], *([number, names[number % 40 < 20]] for number in range(200))])
    fit_file(table, ["y"], tmp_path / "m", epochs=2, device="cpu")
    found = predict_file(tmp_path / "m", table)
    assert predict_file(tmp_path / "m", table, tmp_path / "new.csv") == found
    assert (tmp_path / "new.csv").read_bytes() == found.encode()


def test_npz_with_pickles_is_refused(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.array([{}, []], dtype=object))
    with pytest.raises(InputError, match=r"plain arrays: .*[^.]\. Text, .* as values\.astype\(str\)"):
        read_frame(tmp_path / "d.npz")


def test_npz_of_many_targets_and_of_odd_lengths(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.eye(50), y=np.random.default_rng(0).normal(size=(50, 2)))
    assert fit_file(tmp_path / "d.npz", ["y"], tmp_path / "m", epochs=1)["target"] == ["y_0", "y_1"]
    np.savez(tmp_path / "e.npz", x=np.eye(50), y=np.ones(49))
    with pytest.raises(InputError, match="different numbers of rows"):
        read_frame(tmp_path / "e.npz")


def test_an_array_that_is_called_npz_is_refused(tmp_path):
    np.save(tmp_path / "d.npy", np.eye(50))
    (tmp_path / "d.npy").rename(tmp_path / "d.npz")
    with pytest.raises(InputError, match=r"one array without a name, as numpy\.save writes it"):
        read_frame(tmp_path / "d.npz")


def test_npz_with_two_columns_of_one_name_is_refused(tmp_path):
    for number, order in enumerate((["x", "x_0"], ["x_0", "x"])):
        arrays = {"x": np.eye(50), "x_0": np.arange(50.0)}
        np.savez(tmp_path / f"{number}.npz", **{name: arrays[name] for name in order})
        with pytest.raises(InputError, match="two arrays give a column x_0"):
            read_frame(tmp_path / f"{number}.npz")


def test_parquet_reads_as_csv_does(table, model, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = read(table)
    columns = {
        "size": pa.array([float(row["size"]) if row["size"] else None for row in rows]),
        "town": pa.array([row["town"] for row in rows]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert predict_file(model, tmp_path / "t.parquet") == predict_file(model, table)


def test_an_extra_that_is_not_installed_is_named(tmp_path):
    """A process in which pyarrow cannot be imported."""
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\nfrom gradsieve.tables.reading import read_frame\n"
        "from gradsieve.errors import MissingExtraError\n"
        "try:\n    read_frame(Path('t.parquet'))\nexcept MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert 'Reading Parquet needs pyarrow: pip install "gradsieve[data]"' in done.stdout, done.stderr


def test_a_folder_of_class_folders(tmp_path):
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for number in range(60):
        name = ("dark", "light")[number % 2]
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 100, (20, 24, 3)) + 120 * (number % 2)
        image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "data" / name / f"{number}.png")
    (tmp_path / "data" / "about.csv").write_text("it may lie beside them")
    fit_file(tmp_path / "data", [], tmp_path / "m", epochs=3, drop_rate=0.1)
    text = predict_file(tmp_path / "m", tmp_path / "data")
    assert all(line.split(",")[0].startswith(line.split(",")[1]) for line in text.splitlines()[1:])
    assert text.startswith("row,folder,probability\ndark/")
    with pytest.raises(InputError, match=r"is the folder's name\. Give no targets"):
        fit_file(tmp_path / "data", ["y"], tmp_path / "m2")
    (tmp_path / "data" / "dark" / "x.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"x\.png cannot be read"):
        fit_file(tmp_path / "data", [], tmp_path / "m2")
    (tmp_path / "data" / "top.png").write_bytes(b"")
    with pytest.raises(InputError, match="lies in no class folder"):
        fit_file(tmp_path / "data", [], tmp_path / "m2")


@pytest.mark.skipif(not EXPAND.exists(), reason="the packed real data is not here")
def test_a_real_table(tmp_path):
    command = [sys.executable, str(EXPAND), "--to", str(tmp_path), "power_plant"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    fit_file(tmp_path / "power_plant.csv", ["PE"], tmp_path / "m", epochs=10)
    rows = read(tmp_path / "m" / "rows.csv")
    given, predicted = (np.array([float(row[name]) for row in rows]) for name in ("given", "predicted"))
    assert 1 - ((given - predicted) ** 2).sum() / ((given - given.mean()) ** 2).sum() > 0.92


@pytest.mark.parametrize(("option", "value"), [("seed", -1), ("save_every", -3.0), ("save_every", float("nan"))])
def test_numbers_that_cannot_be_are_refused_before_the_file_is_read(table, tmp_path, option, value):
    with pytest.raises(InputError, match=f"{option} is {value}"):
        fit_file(table, ["price"], tmp_path / "m", **{option: value})
    assert not (tmp_path / "m").exists()


def severities(rows=300):
    """Real numbers, and a column of words that depends on them, one of which is "none"."""
    x = np.random.default_rng(0).normal(size=rows)
    return x, np.array(["none", "minor", "major"], dtype=object)[np.digitize(x, [-0.5, 0.5])]


@pytest.mark.parametrize(("suffix", "stream"), [(".csv", False), (".parquet", False), (".parquet", True)])
def test_none_is_a_word_among_words(suffix, stream, tmp_path):
    """Among numbers it marks a missing value."""
    x, words = severities()
    holes = ["None" if place % 50 == 0 else f"{value}" for place, value in enumerate(x)]
    path = write_columns(tmp_path / f"t{suffix}", {"x": x.tolist(), "holes": holes, "y": words.tolist()})
    notes = []
    summary = fit_file(path, ["y"], tmp_path / "m", epochs=2, device="cpu", stream=stream, note=notes.append)
    assert summary["rows"] == len(x)
    assert load_model(tmp_path / "m").targets.classes == ["major", "minor", "none"]
    assert not any("no target" in text for text in notes)
    summary = fit_file(path, ["holes"], tmp_path / "n", epochs=2, device="cpu", stream=stream)
    assert (summary["task"], summary["rows"]) == ("regression", len(x) - len(x) // 50)


def write_columns(path, columns):
    if path.suffix == ".csv":
        return write_csv(path, list(columns), zip(*columns.values(), strict=True)) or path
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_codes_of_classes_are_classes_in_every_kind_of_file(suffix, tmp_path):
    x, _ = severities()
    codes = np.where(x > 0, "001", "002").tolist()
    path = write_columns(tmp_path / f"t{suffix}", {"x": x.tolist(), "y": codes})
    assert fit_file(path, ["y"], tmp_path / "m", epochs=2, device="cpu")["task"] == "classification"


def test_numbers_in_a_column_that_the_model_knows_as_words(tmp_path):
    """Yes and no in a CSV file, true and false in Parquet: no prediction is better than a wrong one."""
    x, _ = severities()
    words = np.where(x > 0, "yes", "no").tolist()
    table = write_columns(tmp_path / "t.csv", {"flag": words, "x": x.tolist(), "y": (5 * (x > 0) + x).tolist()})
    typed = write_columns(tmp_path / "t.parquet", {"flag": (x > 0).tolist(), "x": x.tolist()})
    fit_file(table, ["y"], tmp_path / "m", epochs=2, device="cpu")
    with pytest.raises(InputError, match="column flag holds numbers or dates, but the model knows it as words"):
        predict_file(tmp_path / "m", typed)
    untyped = write_columns(tmp_path / "untyped.csv", {"flag": [7] * 300, "x": x.tolist()})  # a word never seen
    assert len(predict_file(tmp_path / "m", untyped).splitlines()) == 301
    empty = write_columns(tmp_path / "empty.parquet", {"flag": np.full(300, np.nan), "x": x.tolist()})
    assert len(predict_file(tmp_path / "m", empty).splitlines()) == 301


def test_a_folder_that_cannot_be_made_is_told_before_the_fit(tmp_path):
    path = write_csv(tmp_path / "homes.csv", HEADER, homes(rows=20))
    with pytest.raises(RunFolderError, match=r"cannot be (made|looked into)"):
        fit_file(path, ["price"], path / "m", tell=lambda record: pytest.fail("it was fitted"), epochs=1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["homes.csv"]


def test_what_cannot_be_fitted_in_inference_mode_leaves_no_folder(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"a": np.arange(40.0), "y": np.arange(40.0)}), tmp_path / "a.parquet")
    with torch.inference_mode(), pytest.raises(InputError, match="Train outside of it"):
        fit_file(tmp_path / "a.parquet", "y", tmp_path / "model", stream=True)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("stream", [False, True])
def test_another_word_in_every_row_is_no_set_of_classes(stream, tmp_path):
    path = write_columns(tmp_path / "t.parquet", {"x": list(range(60)), "y": [f"word {row}" for row in range(60)]})
    with pytest.raises(InputError, match="60 different values in 60 rows, which is not a set of classes"):
        fit_file(path, ["y"], tmp_path / "m", epochs=1, device="cpu", stream=stream)


def test_other_marks_between_columns_are_told(gradsieve, tmp_path):
    for name, mark in (("semicolons", ";"), ("tabs", "\t")):
        path = tmp_path / f"{name}.csv"
        path.write_text(f"size{mark}price\n" + f"1{mark}2\n" * 9)
        done = gradsieve("fit", path, "--target", "price", "--out", tmp_path / "m")
        assert (done.code, f"with commas between them, but has {name}." in done.err) == (2, True)


def test_ways_out_that_are_none_are_not_given(gradsieve, table, tmp_path):
    folder, empty = tmp_path / "tables", tmp_path / "empty"
    folder.mkdir()
    empty.mkdir()
    shutil.copy(table, folder / "t.csv")
    for words, says in (
        ((folder, "--target", "price"), "Join them into one CSV file"),
        ((empty, "--target", "price"), f"{empty} is empty. Give a file"),
        ((table, "--target", "price", "--resume"), "write the table as Parquet or Arrow files"),
    ):
        done = gradsieve("fit", *words, "--out", tmp_path / "m")
        assert (done.code, says in done.err) == (2, True)


def test_the_name_of_a_class_that_is_taken_for_nothing_is_told(tmp_path):
    notes = []
    table = write_csv(tmp_path / "t.csv", ["x", "region"], [[x, ("NA", "EU", "APAC")[x % 3]] for x in range(60)])
    fit_file(table, ["region"], tmp_path / "m", epochs=1, note=notes.append)
    assert notes[0].startswith("20 rows are left out: they have no target (cells that read 'NA' count as missing;")


@pytest.mark.filterwarnings("default:In epoch")
@pytest.mark.parametrize("stream", [False, True])
def test_a_class_that_is_given_up_is_told(tmp_path, stream):
    """In memory and streamed, by its name."""
    table = pytest.importorskip("pyarrow").table
    write_table = pytest.importorskip("pyarrow.parquet").write_table
    inputs = np.random.default_rng(0).normal(size=(1200, 2))
    names = np.where(inputs.sum(1) > 2.3, "rare", "usual")
    write_table(table({"a": inputs[:, 0], "b": inputs[:, 1], "y": names}), tmp_path / "t.parquet")
    with pytest.warns(
        UserWarning, match=r"In epoch 12, \d% of the rows of class rare were kept, and 80% of all"
    ) as told:
        fit_file(tmp_path / "t.parquet", "y", tmp_path / "model", epochs=12, device="cpu", stream=stream)
    assert [each.filename for each in told] == [__file__]
