"""Which cells are numbers."""

import math
from pathlib import Path

import numpy as np
import pytest

from gradsieve.errors import InputError
from gradsieve.tables.cells import safe_cell
from gradsieve.tables.encoding import learn_columns
from gradsieve.tables.frame import Frame, label, number, numbers
from gradsieve.tables.reading import read_frame


@pytest.mark.parametrize("cell", ["1_2", "1_000.5", "١٢", "inf", "Infinity", "1e999", "0x10", "20,5", "20%"])
def test_what_python_alone_reads_as_a_number_is_a_word(cell):
    assert number(cell) is None
    assert label(cell) == cell
    assert safe_cell(f"-{cell}") == f"'-{cell}"


@pytest.mark.parametrize(("cell", "value"), [("12", 12.0), (" -1.5e3\xa0", -1500.0), (".5", 0.5), ("+7", 7.0)])
def test_numbers_as_files_have_them(cell, value):
    assert number(cell) == value


def test_cells_that_hold_nothing():
    assert all(math.isnan(number(cell)) for cell in ("", " ", "NA", "nan", "None", "?"))


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["20,5", "21", "22", "19,5"] * 9, "20,5"),
        (["20", "21", "22%", "19 %"] * 9, "22%"),
        (["1,234.50", "7", "12'000", "3"] * 9, "1,234.50"),
        (["20,5", "low", "high", "medium"] * 9, None),  # words, one of which has a comma
        (["1.2.3", "1.2.4", "2.0.0"] * 9, None),
        (["12:30", "555-12", "A4"] * 9, None),
    ],
)
def test_numbers_in_a_spelling_that_is_not_read_are_told(cells, told):
    frame, notes = Frame(Path("x"), {"share": np.array(cells, dtype=object)}), []
    learn_columns(frame, ["share"], [], notes.append)
    assert len(notes) == (told is not None)
    assert all(f"cells such as {told!r}" in text and "give categorical='share'" in text for text in notes)
    learn_columns(frame, ["share"], ["share"], lambda text: pytest.fail(text))


def test_among_true_and_false_the_cell_that_is_neither_is_named(tmp_path):
    rows = [("True", "False")[row % 2] for row in range(30)]
    rows[20] = "yes"
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["ok,y", *(f"{cell},1" for cell in rows)]))
    with pytest.raises(InputError, match=r"line 22, column ok: 'yes' is neither True nor False, as the others are"):
        numbers(read_frame(path), "ok", "the model knows the column as numbers")
