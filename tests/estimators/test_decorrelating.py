"""Inputs without correlations: as near to themselves as that allows, and amounts that lie between columns are found."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from gradsieve import RobustClassifier, RobustRegressor
from gradsieve.audit import audit_estimator
from gradsieve.errors import InputError
from gradsieve.estimators import decorrelating
from gradsieve.estimators.decorrelating import decorrelation


def together(rows=900, columns=12, seed=0):
    """Columns that go together but for small differences."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(rows, 2)) @ random.normal(size=(2, columns)) / 2) + 0.05 * random.normal(
        size=(rows, columns)
    )


def test_every_direction_varies_alike_and_no_row_depends_on_others(monkeypatch):
    inputs = np.clip(together(), -8, 8).astype(np.float32)
    found = decorrelation(inputs)
    mixed = found.apply(inputs)
    before, after = (np.linalg.eigvalsh(np.cov(each.T)) for each in (inputs, mixed))
    assert after.max() / after.min() < 0.2 * before.max() / before.min()
    assert np.allclose(mixed.mean(0), 0, atol=1e-2)
    shuffled = np.random.default_rng(1).permutation(len(inputs))
    monkeypatch.setattr(decorrelating, "BLOCK", 100)
    other = decorrelation(inputs[shuffled])
    assert np.array_equal(other.matrix, found.matrix)
    assert np.array_equal(other.apply(inputs[shuffled]), mixed[shuffled])
    assert np.array_equal(found.apply(inputs[:1]), mixed[:1])
    twice = decorrelation(inputs, np.full(len(inputs), 2.0))
    assert np.array_equal(twice.matrix, found.matrix)


def test_independent_and_constant_columns_stay_as_they_are():
    inputs = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    inputs[:, 2] = 0
    mixed = decorrelation(inputs).apply(inputs)
    assert np.allclose(mixed, inputs - inputs.mean(0), atol=0.1)
    nothing = np.zeros((5, 2), dtype=np.float32)
    assert (decorrelation(nothing).apply(nothing) == 0).all()
    assert decorrelation(np.zeros((2, 1001), dtype=np.float32)) is None


def test_wrong_amounts_that_follow_the_columns_are_found():
    """Right ones lie in small differences, which a network would learn long after the wrong ones."""
    X = together(600)
    y = 20 * X @ np.linalg.svd(X - X.mean(0))[2][-1]  # the direction in which rows differ least
    is_wrong = np.arange(600) < 180
    y[is_wrong] = X[is_wrong, 5] + 0.3
    found = {}
    for decorrelate in ("auto", False):
        model = RobustRegressor(drop_rate="learn", epochs=20, random_state=0, decorrelate=decorrelate).fit(X, y)
        found[decorrelate] = roc_auc_score(is_wrong, audit_estimator(model, X, y).suspicion)
    assert found["auto"] > 0.75
    assert found[False] < 0.5


def test_classes_and_own_networks_keep_their_inputs_unless_told():
    X, y = together(60, 3), np.arange(60) % 2
    options = {"epochs": 1, "random_state": 0}
    for drop_rate, method in ((0.2, "prl-l"), ("learn", "prl-l"), (0.0, "standard")):
        assert RobustRegressor(method, drop_rate, **options).fit(X, y).decorrelation_ is not None
    assert RobustRegressor(decorrelate=False, **options).fit(X, y).decorrelation_ is None
    for decorrelate, is_done in (("auto", False), (True, True)):
        for model in (RobustClassifier(drop_rate="learn"), RobustRegressor(module=torch.nn.Linear(3, 1))):
            model.set_params(decorrelate=decorrelate, **options).fit(X, y)
            assert (model.decorrelation_ is not None) == is_done
    with pytest.raises(InputError, match="decorrelate is 'yes'"):
        RobustRegressor(decorrelate="yes").fit(X, y)
