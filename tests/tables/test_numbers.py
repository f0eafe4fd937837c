"""Which cells are numbers."""

import math

import pytest

from gradsieve.tables.cells import safe_cell
from gradsieve.tables.frame import label, number


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
