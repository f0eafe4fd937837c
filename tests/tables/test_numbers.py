"""Which cells are numbers."""

import math
from pathlib import Path

import numpy as np
import pytest

from gradsieve.data.table import label
from gradsieve.errors import InputError
from gradsieve.tables.cells import safe_cell
from gradsieve.tables.encoding import learn_columns
from gradsieve.tables.frame import Frame, number, numbers
from gradsieve.tables.reading import read_frame


@pytest.mark.parametrize("cell", ["1_2", "1_000.5", "١٢", "inf", "Infinity", "1e999", "0x10", "20,5", "20%"])
def test_what_python_alone_reads_as_a_number_is_a_word(cell):
    assert number(cell) is None
    assert label(cell) == cell
    assert safe_cell(f"-{cell}") == f"'-{cell}"


@pytest.mark.parametrize(
    ("cell", "value"), [("12", 12.0), (" -1.5e3\xa0", -1500.0), (".5", 0.5), ("+7", 7.0), ("\u22125", -5)]
)
def test_numbers_as_files_have_them(cell, value):
    assert number(cell) == value


def test_cells_that_hold_nothing():
    assert all(math.isnan(number(cell)) for cell in ("", " ", "NA", "nan", "None", "?", "#N/A", "<NA>", "-", "\u2014"))


@pytest.mark.parametrize("mark", ["-", "--", "#N/A"])
def test_a_mark_that_holds_nothing_makes_no_words_of_numbers(tmp_path, mark):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["size,kind", *(f"{mark},{mark}\n{row},big" for row in range(20))]))
    frame = read_frame(path)
    size, kind = learn_columns(frame, ["size", "kind"], [], lambda text: pytest.fail(text))
    assert np.isnan(frame.columns["size"]).sum() == 20
    assert size.tells_missing
    assert kind.categories == sorted([mark, "big"])  # among words, a mark is one, too


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["20,5", "21", "22", "19,5"] * 9, "20,5"),
        (["20", "21", "22%", "19 %"] * 9, "22%"),
        (["1,234.50", "7", "12'000", "3"] * 9, "1,234.50"),
        (["$1,000.00", "-$7.50", "($3.00)", "$ 2"] * 9, "$1,000.00"),
        (["20 €", "1\u202f000,50 €", "7\xa0€", "£3"] * 9, "20 €"),
        (["20,5", "low", "high", "medium"] * 9, None),  # words, one of which has a comma
        (["1.2.3", "1.2.4", "2.0.0"] * 9, None),
        (["12:30", "555-12", "A4"] * 9, None),
        (["$", "$$", "$$$"] * 9, None),
        (["02/29/2024", "3/1/24", "12/31/2023 17:05"] * 9, "02/29/2024"),
        (["29.02.2024", "1.3.2024", "2024/03/02"] * 9, "29.02.2024"),
        (["2024-02-29"] * 20 + ["open"], "open"),  # one word among dates
        (["2024-02-29", "open", "closed"] * 9, None),
    ],
)
def test_numbers_and_dates_in_a_spelling_that_is_not_read_are_told(cells, told):
    frame, notes = Frame(Path("x"), {"share": np.array(cells, dtype=object)}), []
    learn_columns(frame, ["share"], [], notes.append)
    assert len(notes) == (told is not None)
    assert all(f"cells such as {told!r}" in text and "give categorical='share'" in text for text in notes)
    learn_columns(frame, ["share"], ["share"], lambda text: pytest.fail(text))


@pytest.mark.parametrize(("share", "is_told"), [(0.05, False), (0.12, True), (0.5, True), (0.6, False)])
def test_words_among_numbers_are_told(share, is_told):
    """Fewer are an error that names the line, and more are a column of words."""
    words = round(100 * share)
    cells = [*(["unknown"] * (words - 1)), "?", "none yet", *map(str, range(100 - words))]
    frame, notes = Frame(Path("x"), {"size": np.array(cells, dtype=object)}), []
    if share < 0.1:
        with pytest.raises(InputError, match="'unknown' is not a finite number"):
            learn_columns(frame, ["size"], [], notes.append)
        return
    learn_columns(frame, ["size"], [], notes.append)
    told = (
        f"size is read as words, since {share:.0%} of its filled cells, such as 'unknown', are no numbers: empty them"
    )
    assert [told in text for text in notes] == [True] * is_told
    learn_columns(frame, ["size"], ["size"], lambda text: pytest.fail(text))


@pytest.mark.parametrize("cell", ["", "none", "-"])
def test_a_column_in_which_no_cell_is_filled_says_nothing_and_is_left_out(tmp_path, cell):
    path, notes = tmp_path / "rows.csv", []
    path.write_text("size,comment\n" + "".join(f"{row % 7},{cell}\n" for row in range(20)))
    (size,) = learn_columns(read_frame(path), ["size", "comment"], [], notes.append)
    assert size.name == "size"
    assert notes == ["column comment is left out: it is constant"]


@pytest.mark.parametrize("unnamed", ["", "Unnamed: 0", "__index_level_0__"])
def test_columns_that_nobody_named_may_number_the_rows(tmp_path, unnamed):
    path, notes = tmp_path / "rows.csv", []
    path.write_text(f"{unnamed},size\n" + "".join(f"{row},{row % 7}\n" for row in range(20)))
    (size,) = learn_columns(read_frame(path), [unnamed, "size"], [], notes.append)
    assert size.name == "size"
    assert notes == [
        f"column {unnamed!r} is left out: it has no name, so it may number the rows; give it a name to use it"
    ]


@pytest.mark.parametrize(
    ("cells", "is_told"),
    [
        (range(1, 21), True),
        (range(0, 40, 2), False),
        ([*range(19), 30], False),
        ([*range(19), ""], False),
    ],
)
def test_a_column_that_numbers_the_rows_is_told(tmp_path, cells, is_told):
    """In a table that is sorted by its target, row numbers predict the wrong targets as well as the right ones."""
    path, notes = tmp_path / "rows.csv", []
    path.write_text("number,size\n" + "".join(f"{cell},{row % 7}\n" for row, cell in enumerate(cells)))
    found = learn_columns(read_frame(path), ["number", "size"], [], notes.append)
    assert [column.name for column in found] == ["number", "size"]  # it may be a day, say
    told = "column number numbers the rows, and in a sorted table predicts wrong targets, too; if it says nothing else"
    assert [told in note and "ignore='number'" in note for note in notes] == [True] * is_told


def test_empty_columns_at_the_end_are_left_out(tmp_path):
    """As a spreadsheet saves them, if a cell there was once filled."""
    path, notes = tmp_path / "rows.csv", []
    path.write_text("size,price,,\n" + "".join(f"{row % 5},{row % 7},,\n" for row in range(20)))
    frame = read_frame(path)
    columns = learn_columns(frame, frame.columns, [], notes.append)
    assert [column.name for column in columns] == ["size", "price"]
    assert [note.split(" is ")[0] for note in notes] == ["column 'Unnamed: 2'", "column 'Unnamed: 3'"]


def test_among_true_and_false_the_cell_that_is_neither_is_named(tmp_path):
    rows = [("True", "False")[row % 2] for row in range(30)]
    rows[20] = "yes"
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["ok,y", *(f"{cell},1" for cell in rows)]))
    with pytest.raises(InputError, match=r"line 22, column ok: 'yes' is neither True nor False, as the others are"):
        numbers(read_frame(path), "ok", "the model knows the column as numbers")
