"""Which outputs are off, and how: every kind is recognised among noise, and honest numbers are left in peace."""

import numpy as np
import pytest

from gradsieve.audit.kinds import error_kinds, off_outputs, residual_scale

NOISE = 0.05


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
        return given * random.uniform(1.5, 3, size=(len(given), 1)) ** random.choice([-1, 1], size=(len(given), 1))
    if kind == "swapped":
        return given[:, np.roll(np.arange(given.shape[1]), 2)]
    return random.uniform(-5, 5, size=given.shape)


@pytest.mark.parametrize("kind", ["sign flipped", "scaled", "swapped", "random"])
def test_each_kind_is_named(kind, rows):
    random, expected, given = rows
    wrong = changed(kind, random, given)
    named = error_kinds(wrong, expected, np.full(10, NOISE))
    assert np.mean(named == kind) > 0.95


def test_two_of_many_numbers_that_changed_places_are_swapped(rows):
    _, expected, given = rows
    wrong = given.copy()
    wrong[:, [2, 7]] = wrong[:, [7, 2]]
    named = error_kinds(wrong, expected, np.full(10, NOISE))
    off = off_outputs(wrong, expected, np.full(10, NOISE))
    far = np.abs(expected[:, 2] - expected[:, 7]) > 10 * NOISE
    assert np.mean(named[far] == "swapped") > 0.95
    assert off[far][:, [2, 7]].all()
    assert off[:, [0, 1, 3, 4, 5, 6, 8, 9]].mean() < 0.001


def test_swapped_numbers_may_have_units_of_their_own(rows):
    """One output a thousand times as wide as another: each number keeps the noise of the quantity that it is."""
    _, expected, given = rows
    units = np.array([1000.0, *np.ones(9)])
    wrong = (given * units)[:, [1, 0, *range(2, 10)]]
    assert np.mean(error_kinds(wrong, expected * units, NOISE * units) == "swapped") > 0.9


def test_one_number_can_be_off_by_its_sign_or_a_power_of_ten():
    expected = np.linspace(1, 2, 50)[:, None]
    scale = np.array([0.02])
    assert (error_kinds(-expected, expected, scale) == "sign flipped").all()
    assert (error_kinds(1000 * expected, expected, scale) == "scaled").all()
    assert (error_kinds(expected / 10, expected, scale) == "scaled").all()
    assert (error_kinds(expected + 3.3, expected, scale) == "random").all()


def test_the_scale_of_residuals_is_that_of_trusted_rows(rows):
    random, expected, given = rows
    wrong = given.copy()
    wrong[:200] = random.uniform(-50, 50, size=(200, 10))
    trusted = np.arange(500) >= 200
    scale = residual_scale(wrong, expected, trusted)
    assert np.allclose(scale, NOISE, rtol=0.2)
    off = off_outputs(wrong, expected, scale)
    assert off[:200].mean() > 0.95
    assert off[200:].mean() < 0.01


def test_a_network_that_knows_its_rows_by_heart_still_leaves_a_scale():
    given = np.random.default_rng(0).normal(size=(100, 2))
    scale = residual_scale(given, given, np.ones(100, dtype=bool))
    assert (scale > 0.01).all()
    assert (residual_scale(np.zeros((5, 2)), np.zeros((5, 2)), np.zeros(5, dtype=bool)) > 0).all()
