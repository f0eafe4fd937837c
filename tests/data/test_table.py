"""Tables as people bring them."""

from __future__ import annotations

import random
import re

import pytest
import torch

from gradsieve.arguments import spelled
from gradsieve.data import DATASETS
from gradsieve.data.validate import validate
from gradsieve.errors import InputError


def write(path, rows=50, classes=("no", "yes")):
    numbers = random.Random(0)
    lines = ["width,height,weight,price,kind"]
    for row in range(rows):
        cells = [f"{numbers.gauss(100, 20):.4f}" for _ in range(4)]
        lines.append(",".join([*cells, classes[row % len(classes)]]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_regression_is_standardised_on_the_training_rows(tmp_path):
    data = DATASETS["table"](write(tmp_path / "things.csv"), target="price,weight", ignore="kind")
    validate(data)
    assert data.task == "regression"
    assert data.output_names == ("price", "weight")
    assert data.train.inputs.shape == (40, 2)
    assert data.test.targets.shape == (10, 2)
    for values in (data.train.inputs, data.train.targets):
        assert values.mean(0).abs().max() < 1e-5
        assert (values.std(0, correction=0) - 1).abs().max() < 1e-5


def test_the_split_is_always_the_same(tmp_path):
    path = write(tmp_path / "things.csv")
    first, second = (DATASETS["table"](path, target="price", ignore="kind") for _ in range(2))
    assert first.train.inputs.equal(second.train.inputs)
    assert first.test.targets.equal(second.test.targets)


def test_the_last_column_is_the_target_and_a_folder_with_one_table_will_do(tmp_path):
    write(tmp_path / "things.csv")
    data = DATASETS["table"](tmp_path, task="classification")
    validate(data)
    assert data.output_names == ("no", "yes")
    assert data.train.inputs.shape == (40, 4)
    assert len(data.train) + len(data.test) == 50


def test_classes_may_be_any_numbers_and_come_in_their_order(tmp_path):
    data = DATASETS["table"](write(tmp_path / "t.csv", classes=("10", "9", "-1.0", "2.5")), task="classification")
    validate(data)
    assert data.output_names == ("-1", "2.5", "9", "10")
    assert sorted(set(data.train.targets.tolist())) == [0, 1, 2, 3]


def test_a_constant_input_becomes_zero_and_a_constant_target_is_an_error(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n" + "".join(f"0.1,{row},{row**2}\n" for row in range(20)))
    data = DATASETS["table"](path)
    assert (data.train.inputs[:, 0] == 0).all()
    with pytest.raises(InputError, match=r"The target a is 0.1 in all 16 training rows"):
        DATASETS["table"](path, target="a")


def test_excel_writes_a_mark_and_other_line_ends(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffa,b\r\n".encode() + b"".join(b'"%d",%d\r\n\r\n' % (row, 2 * row) for row in range(10)))
    data = DATASETS["table"](path, target="a")
    assert data.output_names == ("a",)
    assert torch.allclose(data.train.inputs, data.train.targets, atol=1e-5)


def test_a_cell_that_is_no_number_is_named_by_line_and_column(tmp_path):
    path = write(tmp_path / "t.csv")
    for cell in ("", "n/a", "nan", "inf", "1,5"):
        lines = path.read_text().splitlines()
        lines[7] = f'1,"{cell}",3,4,no'
        (tmp_path / "bad.csv").write_text("\n".join(lines))
        with pytest.raises(InputError, match=rf"bad.csv, line 8, column height: '{cell}' is not a finite number"):
            DATASETS["table"](tmp_path / "bad.csv", target="price", ignore="kind")
    with pytest.raises(InputError, match=r"line 2, column kind: 'no'.*data_options=\{'ignore': 'kind'\}"):
        DATASETS["table"](path, target="price")


def test_the_way_out_is_one_that_whoever_called_has(tmp_path):
    """A command without options of the data is not told to give one, and a target is never to be left out."""
    path = write(tmp_path / "t.csv")
    faults = [
        ({}, r"Correct the row(, or take its words for classes by (.*task.*classification.*))?\.$"),
        ({"target": "price"}, r"Correct the row, or leave the column out( by (.*ignore.*kind.*))?\.$"),
        (
            {"target": "price", "task": "classification", "ignore": "kind"},
            r"Choose another target(, or treat it as real-valued by (.*))?\.$",
        ),
    ]
    for options, says in faults:
        told = []
        for flags in ({}, {"data_options": "--data-option"}, {"rows": "--rows"}):
            with spelled(flags), pytest.raises(InputError) as error:
                DATASETS["table"](path, **options)
            told.append(re.search(says, str(error.value)).groups()[-1])
        in_python, in_a_command, without = told
        assert in_python.startswith("data_options={")
        assert in_a_command.startswith("--data-option ")
        assert without is None


def test_a_class_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match="line 4, column kind: no class"):
        DATASETS["table"](write(tmp_path / "t.csv", classes=("a", "b", "")), task="classification")


def test_a_missing_column_suggests_the_nearest(tmp_path):
    path = write(tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"target: There is no column 'prise'. Did you mean 'price'"):
        DATASETS["table"](path, target="prise")
    with pytest.raises(InputError, match=r"ignore: There is no column 'knd'. Did you mean 'kind'"):
        DATASETS["table"](path, ignore="knd")
    with pytest.raises(InputError, match=r"no task 'regresion'. Did you mean 'regression'"):
        DATASETS["table"](path, task="regresion")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "price", "ignore": "price"}, "ignore a target"),
        ({"target": "width,height,weight,price,kind"}, "no inputs"),
        ({"target": "price", "ignore": "kind", "task": "classification"}, "50 different values in 50 rows"),
        ({"target": "price,kind", "task": "classification"}, "2 columns"),
    ],
)
def test_choices_that_cannot_work(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        DATASETS["table"](write(tmp_path / "t.csv"), **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "first line"),
        (b"a;b;c\n1;2;3\n", "first line must hold two or more"),
        (b"a;y\n" + b"1,5;2,5\n" * 9, "but has semicolons. Write the file with commas, and its numbers with points"),
        (b"a,b,a\n" + b"1,2,3\n" * 9, "the first line names 2 columns 'a'. Give each a name of its own"),
        (b"a,b\n" + b"1,1_2\n" * 9, "line 2, column b: '1_2' is not a finite number"),
        (b"a,b\n" + "1,١٢\n".encode() * 9, "line 2, column b: '١٢' is not a finite number"),
        (b"1.5,2,3\n" * 9, "begins '1.5,2,3'"),
        (b"a,b\n1,2\n", "1 rows below the header"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 cells, but the header has 2"),
        (b'a,b\n1,2\n3,"4\n' + b"1,2\n" * 9, "line 3: the row that begins here cannot be read as CSV"),
        (b'a,b\n1,2\n3,"4\n' + b"1,2\n" * 9 + b'1,"2"\n', "line 3: the row that begins here cannot be read as CSV"),
        (b'a,"b\n' + b"1,2\n" * 9, "line 1: the row that begins here cannot be read as CSV"),
        (b"a,b\n\xff\xfe,2\n", "cannot be read as CSV"),
        (b"a,b\n1,2\n" * 5000 + b"1,\xa32\n", "line 10001 has the byte 0xa3 after '1,'. Save it as CSV UTF-8"),
    ],
)
def test_files_that_are_no_tables_are_named(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        DATASETS["table"](tmp_path)


def test_which_file(tmp_path):
    with pytest.raises(InputError, match="no folder was given"):
        DATASETS["table"]()
    with pytest.raises(InputError, match=r"must hold one .csv file"):
        DATASETS["table"](tmp_path)
    with pytest.raises(InputError, match="no folder"):
        DATASETS["table"](tmp_path / "missing.csv")
    write(tmp_path / "a.csv")
    write(tmp_path / "b.csv")
    with pytest.raises(InputError, match=r"2 .csv files in .* a.csv, b.csv"):
        DATASETS["table"](tmp_path)


@pytest.mark.parametrize("word", ["", "NA", "null", "n/a", "?"])
def test_words_that_are_no_class_are_those_of_a_fit(tmp_path, word):
    path = tmp_path / "t.csv"
    path.write_text("a,kind\n" + "".join(f"{row},{('cat', 'none')[row % 2]}\n" for row in range(20)) + f"20,{word}\n")
    with pytest.raises(InputError, match="line 22, column kind: no class"):
        DATASETS["table"](path, target="kind", task="classification")


def test_classes_that_a_float_cannot_tell_apart_stay_apart(tmp_path):
    path, names = tmp_path / "t.csv", ("9007199254740992", "9007199254740993")
    path.write_text("a,kind\n" + "".join(f"{row},{names[row % 2]}\n" for row in range(20)))
    assert DATASETS["table"](path, target="kind", task="classification").output_names == names
