"""Cells that are meant as numbers or dates, but written as this library does not read them."""

from __future__ import annotations

import re
from collections import Counter

from numpy.typing import NDArray

from gradsieve.tables.dates import iso_days
from gradsieve.tables.frame import is_missing, number

MOSTLY = 0.9  # if this share of the filled cells are numbers, the others are mistakes, not categories
PLAIN = "a decimal point, nothing between thousands, no % or currency sign"

GAP = "[ \u00a0\u2009\u202f]"  # spaces, as they stand between thousands and before a sign
SIGN = "[-+\u2212]"
CURRENCY = "[$\u00a2-\u00a5\u20a0-\u20cf]"
# A number with commas, with % or with a currency sign. Accountants put a negative amount into parentheses.
NUMBER = re.compile(
    rf"\(?{SIGN}?({CURRENCY}{GAP}?)?{SIGN}?(\d{{1,3}}((['\u2019,.]|{GAP})\d{{3}})+|\d+)([.,]\d+)?{GAP}*(%|{CURRENCY})?\)?",
    re.ASCII,
)
# A date such as 29/02/2024, 29.02.2024 or 2024/2/29, with or without a time.
DATE = re.compile(
    r"(\d{1,2}/\d{1,2}/(\d\d){1,2}|\d{1,2}[.-]\d{1,2}[.-]\d{4}|\d{4}[./]\d{1,2}[./]\d{1,2})([ T].*)?", re.ASCII
)


def is_mostly_numbers(cells: NDArray) -> bool:
    """Whether so many cells are numbers that the others look like mistakes."""
    filled = [number(cell) for cell in filled_cells(cells)]
    return bool(filled) and sum(value is not None for value in filled) >= MOSTLY * len(filled)


def doubt_of_words(cells: NDArray) -> str:
    """Why a column that is read as words may be meant as something else, and what to do then; empty if it is not."""
    if (misspelt := misspelt_number(cells)) is not None:
        return f"cells such as {misspelt!r} are no numbers: write them as 20.5 ({PLAIN})"
    if (misspelt := misspelt_date(cells)) is not None:
        return f"cells such as {misspelt!r} are no dates: write them as 2024-02-29, empty them"
    filled = filled_cells(cells)
    words = Counter(cell for cell in filled if number(cell) is None)
    if not words or 2 * words.total() > len(filled):
        return ""
    return (
        f"{words.total() / len(filled):.0%} of its filled cells, such as {words.most_common(1)[0][0]!r}, are no "
        "numbers: empty them if they hold nothing"
    )


def misspelt_number(cells: NDArray) -> str | None:
    """A cell such as 20,5 or $20 of a column that would be numbers if these were; None if there is none."""
    filled = filled_cells(cells)
    others = [cell for cell in filled if number(cell) is None]
    odd = [cell for cell in others if NUMBER.fullmatch(cell)]
    return odd[0] if odd and len(others) - len(odd) <= (1 - MOSTLY) * len(filled) else None


def misspelt_date(cells: NDArray) -> str | None:
    """A cell that is no ISO date, of a column in which most cells are dates in some spelling; None if there is none."""
    filled = filled_cells(cells)
    others = [cell for cell in filled if iso_days(cell) is None]
    no_dates = sum(DATE.fullmatch(cell) is None for cell in others)
    return others[0] if others and no_dates <= (1 - MOSTLY) * len(filled) else None


def filled_cells(cells: NDArray) -> list[str]:
    """The cells that are not missing, as they would be among numbers, without spaces around them."""
    return [cell.strip() for cell in cells[~is_missing(cells, among_numbers=True)]]
