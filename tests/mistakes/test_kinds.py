"""Kinds of error: each is recognised among noise, swaps too small to see by their size are, and honest rows stay so."""

import itertools

import numpy as np
import pytest

from gradsieve.mistakes import kinds, scatter
from gradsieve.mistakes.kinds import KINDS, common_order, explain, learn_kinds, named_alone
from gradsieve.mistakes.scatter import off_outputs, residual_scale

NOISE = 0.05
WRONG = 100


@pytest.fixture
def rows():
    """Expected targets of ten outputs, and what an honest source gives for them."""
    random = np.random.default_rng(0)
    expected = random.normal(size=(500, 10))
    return random, expected, expected + NOISE * random.normal(size=expected.shape)


def changed(kind, random, given):
    if kind == "sign flipped":
        return -given
    if kind == "scaled":
        return given * random.uniform(1.7, 3, size=(len(given), 1)) ** random.choice([-1, 1], size=(len(given), 1))
    if kind == "swapped":
        return given[:, np.roll(np.arange(given.shape[1]), 2)]
    return random.uniform(-5, 5, size=given.shape)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_kind_is_named_and_honest_rows_are_right(kind, rows):
    random, expected, given = rows
    given[:WRONG] = changed(kind, random, given[:WRONG])
    found = explain(given, expected)
    assert (found.odds[:WRONG] > 0).mean() > 0.95
    assert (found.odds[WRONG:] > 0).mean() < 0.01
    assert np.mean(found.kind[:WRONG] == kind) > 0.95


def test_a_row_that_is_a_little_larger_than_expected_is_not_called_scaled(rows):
    _, expected, given = rows
    given[:WRONG] *= 1.3
    assert not (explain(given, expected).kind[:WRONG] == "scaled").any()


def test_an_order_that_rows_share_is_found_where_one_row_would_show_nothing(rows):
    """Outputs that hardly differ, and errors as large as their differences: no row by itself shows a swap."""
    random, expected, _ = rows
    expected = expected[:, :1] + 0.3 * expected[:, :6]
    given = expected + 0.15 * random.normal(size=expected.shape)
    order = np.array([2, 0, 1, 4, 5, 3])
    given[:WRONG] = given[:WRONG][:, order]
    found = explain(given, expected)
    assert learn_kinds(given, expected).order.tolist() == np.argsort(order).tolist()
    flagged = found.odds > 0
    assert (np.arange(500) < WRONG)[flagged].mean() > 0.9
    assert flagged[:WRONG].mean() > 0.8
    assert np.mean(found.kind[:WRONG][flagged[:WRONG]] == "swapped") > 0.9


def test_the_common_order_is_that_of_all_orders_that_costs_least(rows):
    _, expected, given = rows
    expected, given = expected[:, :4], given[:, :4]
    for order in itertools.permutations(range(4)):
        wrong = given.copy()
        wrong[:WRONG] = wrong[:WRONG][:, order]
        start = learn_kinds(given, expected)
        far = slice(0, WRONG) if order != (0, 1, 2, 3) else slice(0, 500)
        costs = {each: ((wrong[far][:, each] - expected[far]) ** 2).sum() for each in itertools.permutations(range(4))}
        assert tuple(common_order(start, wrong, expected)) == min(costs, key=costs.get)


def test_two_of_many_numbers_that_changed_places_are_swapped(rows):
    _, expected, given = rows
    for row in range(WRONG):  # another pair in each row: no order is shared
        pair = [row % 10, (row + 1 + row // 10) % 10]
        given[row, pair] = given[row, pair[::-1]]
    found = explain(given, expected)
    far = np.abs(given - expected).max(1) > 20 * NOISE
    assert far.sum() > 30
    assert np.mean(found.kind[far] == "swapped") > 0.95


def test_outputs_may_have_units_of_their_own(rows):
    """One output a thousand times as wide as another. Only which numbers could be swapped depends on it."""
    random, expected, given = rows
    given[:WRONG] = changed("random", random, given[:WRONG])
    units = np.array([1000.0, *np.ones(9)])
    plain, scaled = explain(given, expected), explain(given * units, expected * units)
    assert ((plain.odds > 0) == (scaled.odds > 0)).all()
    assert (plain.kind[:WRONG] == scaled.kind[:WRONG]).all()
    assert np.allclose(plain.distance, scaled.distance)


def test_one_number_can_be_off_by_its_sign_or_a_power_of_ten(rows):
    random, *_ = rows
    expected = random.uniform(1, 2, size=(500, 1))
    given = expected + 0.02 * random.normal(size=expected.shape)
    given[:20] *= -1
    given[20:40] *= 1000
    given[40:60] /= 10
    given[60:80] += 3.3
    found = explain(given, expected)
    assert (found.odds[:80] > 0).all()
    assert (found.kind[:20] == "sign flipped").all()
    assert (found.kind[20:60] == "scaled").all()
    assert (found.kind[60:80] == "random").all()


def test_heavy_tails_of_right_rows_are_no_errors(rows):
    """Rows that a network was not trained on lie farther off than the others."""
    random, expected, _ = rows
    width = np.where(np.arange(500) < WRONG, 3.0, 1.0)[:, None]
    given = expected + NOISE * width * random.normal(size=expected.shape)
    assert (explain(given, expected).odds > 0).mean() < 0.02


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.zeros((5, 2)), np.zeros((5, 2))),
        (np.ones((1, 3)), np.zeros((1, 3))),
        (np.full((9, 2), 1e300), np.zeros((9, 2))),
        (np.arange(6.0)[:, None] * np.ones(12), np.zeros((6, 12))),  # more outputs than rows, and all alike
        (np.array([[0.0], [1e308], [-1e308]]), np.zeros((3, 1))),
    ],
)
def test_whatever_the_numbers_the_odds_are_numbers(given, expected):
    found = explain(given, expected)
    assert not np.isnan(found.odds).any()
    assert np.isfinite(found.distance).all()


def test_many_rows_are_explained_in_parts(rows, monkeypatch):
    random, expected, given = rows
    given[::5] = changed("sign flipped", random, given[::5])
    whole = explain(given, expected)
    monkeypatch.setattr(scatter, "PART", 120)
    monkeypatch.setattr(scatter, "SAMPLE", 250)
    parts = explain(given, expected)
    assert np.mean((whole.odds > 0) == (parts.odds > 0)) > 0.99
    assert len(parts.kind) == 500


def test_the_scale_of_residuals_is_that_of_trusted_rows(rows):
    random, expected, given = rows
    given[:200] = random.uniform(-50, 50, size=(200, 10))
    scale = residual_scale(given, expected, np.arange(500) >= 200)
    assert np.allclose(scale, NOISE, rtol=0.2)
    off = off_outputs(given, expected, scale)
    assert off[:200].mean() > 0.95
    assert off[200:].mean() < 0.01


def test_a_network_that_knows_its_rows_by_heart_still_leaves_a_scale():
    given = np.random.default_rng(0).normal(size=(100, 2))
    scale = residual_scale(given, given, np.ones(100, dtype=bool))
    assert (scale > 0.01).all()
    assert (residual_scale(np.zeros((5, 2)), np.zeros((5, 2)), np.zeros(5, dtype=bool)) > 0).all()


def test_one_output_that_is_off_is_explained_by_itself(rows):
    random, expected, given = rows
    expected, given = expected + 3, given + 3
    given[:20, 4] *= -1
    given[20:40, 7] *= 10
    given[40:60, 2] += random.uniform(4, 30, size=20)
    given[60:80] = random.uniform(-9, 9, size=(20, 10))
    found, off = explain(given, expected), off_outputs(given, expected, np.full(10, NOISE))
    named = np.array(KINDS)[named_alone(given, expected, found.number, off, found.odds > 0)]
    truth = np.repeat(["sign flipped", "scaled", "random", "random"], 20)
    assert (named[:80] == truth).mean() > 0.9
    assert (named[80:] == np.array(KINDS)[found.number[80:]]).all()  # not flagged: left as it was
