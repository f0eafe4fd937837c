"""Counts are those of exact arithmetic on the rate as it was written."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.counts import KeptShare, check_rate, exact, keep_count, part
from gradsieve.errors import InputError
from gradsieve.schedule import ramp

many = settings(max_examples=200, deadline=None)
written = st.integers(0, 999_999).map(lambda millionths: f"0.{millionths:06}")  # a rate as a person writes it
rows = st.integers(1, 10**7)


@many
@given(text=written, rows=rows)
def test_counts_are_those_of_the_decimal_text(text, rows):
    assert_counts(text, rows)


@many
@given(hundredths=st.integers(0, 99), times=st.integers(1, 100))
def test_counts_are_exact_where_the_share_is_a_whole_number_of_rows(hundredths, times):
    text = f"0.{hundredths:02}"
    assert_counts(text, times * Fraction(text).denominator)


def assert_counts(text, rows):
    rate = Fraction(text)
    assert keep_count(float(text), rows) == max(1, math.floor((1 - rate) * rows))
    share = KeptShare.beside(float(text))
    assert share.of(rows) == int(share.of(torch.tensor(rows))) == keep_count(float(text), rows)
    assert part(float(text), rows) == math.floor(rate * rows)


@many
@given(
    hundredths=st.integers(0, 99),
    length=st.integers(1, 100),
    time=st.integers(1, 200),
    rows=st.integers(1, 4096),
)
def test_counts_of_a_ramp_are_those_of_its_fraction(hundredths, length, time, rows):
    rate = min(Fraction(time, length), 1) * Fraction(hundredths, 100)
    assert keep_count(ramp(time, float(f"0.{hundredths:02}"), length), rows) == max(1, math.floor((1 - rate) * rows))


@pytest.mark.parametrize(
    ("rate", "rows", "kept"),
    [(0.8, 10, 2), (0.9, 100, 10), (0.1, 10, 9), (3 / 10 * 0.45, 200, 173), (0.0, 7, 7), (0.999999, 3, 1), (0.3, 1, 1)],
)
def test_floats_do_not_cost_a_row(rate, rows, kept):
    assert int((1 - 0.8) * 10) == 1  # what float arithmetic gives instead of 2
    assert keep_count(rate, rows) == kept


@many
@given(rate=st.floats(0, 1, exclude_max=True), rows=st.integers(1, 10_000))
def test_any_rate_keeps_at_least_one_row_and_at_most_all(rate, rows):
    assert 1 <= keep_count(rate, rows) <= rows


@many
@given(low=written, high=written, rows=rows)
def test_a_higher_rate_never_keeps_more(low, high, rows):
    low, high = sorted([float(low), float(high)])
    assert keep_count(high, rows) <= keep_count(low, rows)


def test_the_short_fraction_is_found_again():
    assert exact(0.1) == Fraction(1, 10)
    assert exact(3 / 10 * 0.45) == Fraction(27, 200)
    assert exact(1 / 3) == Fraction(1, 3)


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, 1.5, math.nan, math.inf, -math.inf, True, False, "0.3", None, [0.3]])
def test_what_is_not_a_rate_is_refused_by_name(rate):
    with pytest.raises(InputError, match=r"drop_rate is .*, but a rate is a number from 0 up to, but not including, 1"):
        check_rate("drop_rate", rate)


@pytest.mark.parametrize("rate", [0, 0.0, 0.3, 0.999])
def test_a_rate_comes_back_as_a_float(rate):
    assert check_rate("rate", rate) == rate
    assert isinstance(check_rate("rate", rate), float)


def test_a_rate_as_good_as_zero_costs_no_row():
    assert keep_count(4e-7, 1000) == KeptShare.beside(4e-7).of(1000) == 1000
    assert keep_count(1e-6, 1000) == 999
