"""Kinds of error: each is recognised among noise, swaps too small to see by their size are, and honest rows stay so."""

import itertools

import numpy as np
import pytest

from gradsieve.mistakes import kinds, scatter
from gradsieve.mistakes.kinds import KINDS, common_order, diagnose, learn_kinds, single_output_kinds
from gradsieve.mistakes.scatter import residual_scale, spread
from gradsieve.mistakes.widths import Widths, learn_widths, no_gaps, off_outputs, row_widths

NOISE = 0.05
WRONG = 100


@pytest.fixture
def rows():
    """Expected targets of ten outputs, and what an honest source gives for them."""
    random = np.random.default_rng(0)
    expected = random.normal(size=(500, 10))
    return random, expected, expected + NOISE * random.normal(size=expected.shape)


def alike(outputs):
    """One width for all rows."""
    return Widths(np.empty((outputs, 0)), np.ones((outputs, 1)), np.empty((0, outputs)))


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
    found = diagnose(given, expected)
    assert (found.odds[:WRONG] > 0).mean() > 0.95
    assert (found.odds[WRONG:] > 0).mean() < 0.01
    assert np.mean(found.kind[:WRONG] == kind) > 0.95


def test_a_row_that_is_a_little_larger_than_expected_is_not_called_scaled(rows):
    _, expected, given = rows
    given[:WRONG] *= 1.3
    assert not (diagnose(given, expected).kind[:WRONG] == "scaled").any()


def test_an_order_that_rows_share_is_found_where_one_row_would_show_nothing(rows):
    """Outputs that hardly differ, and errors as large as their differences: no row by itself shows a swap."""
    random, expected, _ = rows
    expected = expected[:, :1] + 0.3 * expected[:, :6]
    given = expected + 0.15 * random.normal(size=expected.shape)
    order = np.array([2, 0, 1, 4, 5, 3])
    given[:WRONG] = given[:WRONG][:, order]
    found = diagnose(given, expected)
    assert learn_kinds(given, expected, no_gaps(500)).order.tolist() == np.argsort(order).tolist()
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
        start = learn_kinds(given, expected, no_gaps(500))
        far = slice(0, WRONG) if order != (0, 1, 2, 3) else slice(0, 500)
        costs = {each: ((wrong[far][:, each] - expected[far]) ** 2).sum() for each in itertools.permutations(range(4))}
        assert tuple(common_order(start, wrong, expected, np.ones_like(wrong))) == min(costs, key=costs.get)


def test_two_of_many_numbers_that_changed_places_are_swapped(rows):
    _, expected, given = rows
    for row in range(WRONG):  # another pair in each row: no order is shared
        pair = [row % 10, (row + 1 + row // 10) % 10]
        given[row, pair] = given[row, pair[::-1]]
    found = diagnose(given, expected)
    far = np.abs(given - expected).max(1) > 20 * NOISE
    assert far.sum() > 30
    assert np.mean(found.kind[far] == "swapped") > 0.95


def test_outputs_may_have_units_of_their_own(rows):
    """One output a thousand times as wide as another. Only which numbers could be swapped depends on it."""
    random, expected, given = rows
    given[:WRONG] = changed("random", random, given[:WRONG])
    units = np.array([1000.0, *np.ones(9)])
    plain, scaled = diagnose(given, expected), diagnose(given * units, expected * units)
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
    found = diagnose(given, expected)
    assert (found.odds[:80] > 0).all()
    assert (found.kind[:20] == "sign flipped").all()
    assert (found.kind[20:60] == "scaled").all()
    assert (found.kind[60:80] == "random").all()


def test_heavy_tails_of_right_rows_are_no_errors(rows):
    """Rows that a network was not trained on lie farther off than the others."""
    random, expected, _ = rows
    width = np.where(np.arange(500) < WRONG, 3.0, 1.0)[:, None]
    given = expected + NOISE * width * random.normal(size=expected.shape)
    assert (diagnose(given, expected).odds > 0).mean() < 0.02


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
    found = diagnose(given, expected)
    assert not np.isnan(found.odds).any()
    assert np.isfinite(found.distance).all()


def test_many_rows_are_explained_in_parts(rows, monkeypatch):
    random, expected, given = rows
    given[::5] = changed("sign flipped", random, given[::5])
    whole = diagnose(given, expected)
    monkeypatch.setattr(scatter, "PART", 120)
    monkeypatch.setattr(scatter, "SAMPLE", 250)
    parts = diagnose(given, expected)
    assert np.mean((whole.odds > 0) == (parts.odds > 0)) > 0.99
    assert len(parts.kind) == 500


def test_the_scale_of_residuals_is_that_of_trusted_rows(rows):
    random, expected, given = rows
    given[:200] = random.uniform(-50, 50, size=(200, 10))
    scale = residual_scale(given, expected, np.arange(500) >= 200)
    assert np.allclose(scale, NOISE, rtol=0.2)
    off = off_outputs(given, expected, no_gaps(500), alike(10), scale)
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
    found, off = diagnose(given, expected), off_outputs(given, expected, no_gaps(500), alike(10), np.full(10, NOISE))
    named = np.array(KINDS)[single_output_kinds(given, expected, no_gaps(500), found.number, off, found.odds > 0)]
    truth = np.repeat(["sign flipped", "scaled", "random", "random"], 20)
    assert (named[:80] == truth).mean() > 0.9
    assert (named[80:] == np.array(KINDS)[found.number[80:]]).all()  # not flagged: left as it was


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_right_row_that_is_zero_is_not_called_scaled(outputs):
    """A thousandth of zero is zero: no factor explains it, however near it is to what was expected."""
    random = np.random.default_rng(0)
    expected = random.normal(0, 10, size=(2000, outputs))
    expected[:40] = random.normal(size=(40, outputs))
    given = expected + random.normal(size=expected.shape)
    given[:40] = 0
    assert not (diagnose(given, expected).odds[:40] > 0).any()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
def test_targets_that_are_mostly_zero_are_right_in_any_unit(share, unit):
    random = np.random.default_rng(1)
    amount = np.where(random.random((1000, 1)) < share, 0, random.exponential(20, size=(1000, 1)) + 5)
    given = unit * amount
    expected = unit * (amount + random.normal(size=amount.shape))
    assert (diagnose(given, expected).odds > 0).mean() < 0.01


def test_counts_are_right():
    random = np.random.default_rng(2)
    for mean in (0.2, 0.5, 3.0):
        expected = mean * np.exp(0.5 * random.normal(size=(2000, 1)))
        assert (diagnose(random.poisson(expected).astype(float), expected).odds > 0).mean() < 0.01


def test_zeros_stay_right_among_flipped_signs():
    """The sign of zero says nothing, so it is no reason to think that it was turned."""
    random = np.random.default_rng(3)
    expected = np.where(random.random((1000, 1)) < 0.3, 0, random.normal(0, 10, size=(1000, 1)))
    given = np.where(expected == 0, 0, expected + 0.3 * random.normal(size=expected.shape))
    flipped = (random.random((1000, 1)) < 0.4) & (np.abs(expected) > 3)
    found = diagnose(np.where(flipped, -given, given), expected)
    assert not (found.odds[given[:, 0] == 0] > 0).any()
    assert (found.odds[flipped[:, 0]] > 0).mean() > 0.95


def test_the_spread_of_what_is_mostly_one_value_is_that_of_the_rest():
    values = np.array([[0.0] * 7 + [2.0, -4.0, 6.0], [5.0] * 10]).T
    assert np.allclose(spread(values), [scatter.NORMAL_MAD * 4, 1])


@pytest.mark.parametrize("noise", [0.2, 0.5])
def test_errors_that_grow_with_the_amount_are_no_mistakes(noise):
    random = np.random.default_rng(0)
    expected = np.exp(2 * random.normal(size=(1000, 1)))
    given = expected * np.exp(noise * random.normal(size=expected.shape))
    assert (diagnose(given, expected).odds > 0).mean() < 0.03
    dear = np.flatnonzero(expected[:, 0] > 3)[:40]
    given[dear] *= -1
    found = diagnose(given, expected)
    assert (found.odds[dear] > 0).mean() > 0.9
    assert (np.delete(found.odds, dear) > 0).mean() < 0.03


def test_widths_are_those_of_a_loop(rows):
    """Strata of what is expected, and gaps, each output by itself."""
    random, expected, given = rows
    given, expected = given[:, :2], expected[:, :2]
    given[expected[:, 0] > 1, 0] += 0.4 * random.normal(size=(expected[:, 0] > 1).sum())
    gaps = random.random((500, 3)) < [0.2, 0.01, 0.0]
    given[gaps[:, 0], 1] += 0.5 * random.normal(size=gaps[:, 0].sum())
    is_right = random.random(500) < 0.9
    found = row_widths(learn_widths(given, expected, gaps, is_right), expected, gaps)
    away = np.abs(given - expected)
    for output in range(2):
        typical = np.median(away[is_right, output])
        spreads = spread(given[is_right])[output]
        assert typical > scatter.FLOOR * spreads / scatter.NORMAL_MAD

        def width(members, presumed, output=output, typical=typical):
            own = away[members & is_right, output] / typical
            share = len(own) / (len(own) + 20)
            return max(1, (np.median(own) ** share if len(own) else 1) * presumed ** (1 - share))

        deciles = np.quantile(expected[:, output], np.arange(1, 10) / 10)
        for row in range(0, 500, 7):
            same = [(deciles <= value).sum() for value in expected[:, output]]
            widths = [width(np.array(same) == same[row], 1)]
            widths += [width(gaps[:, gap], spreads / typical) for gap in np.flatnonzero(gaps[row])]
            assert np.isclose(found[row, output], max(widths))


def test_rows_of_which_too_little_is_known_are_not_called_wrong(rows):
    """What a network expects of a row with a gap may be far off, and is where the gap is what matters."""
    random, expected, given = rows
    gaps = (np.arange(500) % 12 == 0)[:, None]
    expected[gaps[:, 0]] = 0.1 * random.normal(size=(gaps.sum(), 10))  # the mean of all, about
    assert (diagnose(given, expected).odds[gaps[:, 0]] > 0).mean() > 0.9
    found = diagnose(given, expected, gaps)
    assert not (found.odds > 0).any()
    one = gaps & (np.arange(500) == 0)[:, None]  # a single one shows no width of its own
    given[gaps[:, 0] & ~one[:, 0]] = expected[gaps[:, 0] & ~one[:, 0]]
    assert not (diagnose(given, expected, one).odds > 0).any()
