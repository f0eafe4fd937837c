"""Scales against naive ones, and what no wrong value may do to them."""

import numpy as np
import pytest
from sklearn.preprocessing import RobustScaler

from gradsieve.estimators.rows import batch_rows, canonical_order
from gradsieve.estimators.scaling import quantiles, robust_scale, scale_inputs, target_scale


def test_the_scale_is_scikit_learns_where_quartiles_fall_on_rows():
    values = np.random.default_rng(0).normal(size=(101, 4)) ** 3
    theirs = RobustScaler().fit(values)
    scale = robust_scale(values)
    np.testing.assert_allclose(scale.centre, theirs.center_)
    np.testing.assert_allclose(scale.width, theirs.scale_)
    np.testing.assert_allclose(scale.apply(values), theirs.transform(values))
    np.testing.assert_allclose(scale.invert(scale.apply(values)), values)


def test_weighted_quantiles_are_those_of_copies():
    random = np.random.default_rng(0)
    values, weights = random.normal(size=(50, 3)), random.integers(1, 6, 50)
    shares = (0.1, 0.25, 0.5, 0.75, 0.99)
    copies = np.quantile(values.repeat(weights, 0), shares, axis=0, method="inverted_cdf")
    np.testing.assert_array_equal(quantiles(values, shares, weights.astype(float)), copies)
    np.testing.assert_array_equal(quantiles(values, shares, np.ones(50)), quantiles(values, shares))


@pytest.mark.parametrize("share", [0.01, 0.2, 0.6])
def test_zeros_and_ones_stay_one_apart_however_rare(share):
    values = (np.arange(1000) < share * 1000).astype(float)[:, None]
    assert robust_scale(values).width[0] == 1


def test_constant_columns_have_the_width_one():
    values = np.full((10, 2), [3.0, 0.1 + 0.2])
    values[0, 1] = 0.3  # a rounding error is no spread
    assert robust_scale(values).width.tolist() == [1, 1]


def test_wrong_targets_cannot_move_the_scale_far():
    clean = np.random.default_rng(0).normal(size=(1000, 1))
    given = clean.copy()
    given[:240] = 1e12
    assert abs(target_scale(clean).width[0] - 1) < 0.1
    assert target_scale(given).width[0] < 3


def test_the_clip_keeps_the_order_and_the_middle():
    values = np.array([[-1e308], [-5.0], [-0.1], [0.0], [0.1], [5.0], [1e308]])
    scaled = scale_inputs(values, robust_scale(np.linspace(-1, 1, 101)[:, None]), 3.0).ravel()
    assert (np.diff(scaled) > 0).all()
    assert np.abs(scaled).max() <= 3
    np.testing.assert_allclose(scaled[4], 0.1, rtol=1e-2)
    free = scale_inputs(values[1:-1], robust_scale(np.linspace(-1, 1, 101)[:, None]), np.inf).ravel()
    np.testing.assert_allclose(free, values[1:-1].ravel())


def test_an_order_by_content_alone():
    random = np.random.default_rng(0)
    inputs, targets = random.integers(0, 2, (200, 3)).astype(np.float32), random.integers(0, 2, 200)
    shuffle = random.permutation(200)
    first, second = canonical_order(inputs, targets), canonical_order(inputs[shuffle], targets[shuffle])
    np.testing.assert_array_equal(inputs[first], inputs[shuffle][second])
    np.testing.assert_array_equal(targets[first], targets[shuffle][second])


@pytest.mark.parametrize("rows", [1, 2, 5, 31, 200, 4095, 100_000])
@pytest.mark.parametrize("batch_size", ["auto", 2, 16, 256])
def test_batches_leave_hardly_a_row_over(rows, batch_size):
    size = batch_rows(rows, batch_size)
    assert 1 <= size <= (256 if batch_size == "auto" else batch_size)
    assert rows % size < rows // size + 1  # fewer than there are batches
