"""drop_rate="learn": one fit that drops as many rows as seem wrong on its way."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from gradsieve import RobustClassifier, RobustRegressor
from gradsieve.errors import InputError
from gradsieve.estimators.learnt_rate import learning_epochs
from gradsieve.estimators.plan import Plan

quick = {"drop_rate": "learn", "epochs": 30, "random_state": 0}


def wrong_digits(share):
    X, y = load_digits(return_X_y=True)
    is_wrong = np.random.default_rng(0).random(len(y)) < share
    return X, np.where(is_wrong, (y + 1) % 10, y)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35])
def test_the_rate_of_wrong_classes_is_learnt_both_ways(share):
    model = RobustClassifier(**quick).fit(*wrong_digits(share))
    assert model.drop_rate_ == pytest.approx(share, abs=0.08)
    assert model.corruption_rate_ == model.drop_rate_ == model.history_[-1]["drop_rate"]
    assert 1 - model.kept_.mean() == pytest.approx(model.drop_rate_, abs=1e-3)


def test_the_rate_of_wrong_amounts_falls_only_where_they_are_met_closely():
    random = np.random.default_rng(0)
    X = random.normal(size=(800, 3))
    clean = np.stack([X[:, 0] + X[:, 1], X[:, 2] - X[:, 0]], axis=1)
    given = np.where(np.arange(800)[:, None] < 280, random.uniform(-9, 9, size=(800, 2)), clean)
    assert RobustRegressor(**quick).fit(X, given).drop_rate_ == pytest.approx(0.35, abs=0.05)
    assert RobustRegressor(**quick).fit(X, clean).drop_rate_ < 0.1
    noisy = clean + random.normal(size=clean.shape)
    assert RobustRegressor(**quick).fit(X, noisy).drop_rate_ == 0.2


def test_a_network_that_has_seen_few_epochs_is_asked_later():
    assert learning_epochs("classification", 50) == learning_epochs("regression", 50) == {10, 15, 20}
    assert learning_epochs("classification", 100) == {20, 30, 40}
    assert learning_epochs("classification", 10) == {4, 6, 8}
    assert learning_epochs("regression", 10) == {2, 3, 4}
    for epochs in range(1, 60):
        assert max(learning_epochs("classification", epochs)) <= max(1, 0.8 * epochs + 0.5)


def test_the_order_of_rows_makes_no_difference():
    X, y = wrong_digits(0.2)
    shuffled = np.random.default_rng(1).permutation(len(y))
    options = {**quick, "epochs": 6}
    first, second = RobustClassifier(**options).fit(X, y), RobustClassifier(**options).fit(X[shuffled], y[shuffled])
    assert first.drop_rate_ == second.drop_rate_
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))


def test_a_method_that_drops_nothing_learns_no_rate():
    X, y = wrong_digits(0.2)
    assert RobustClassifier("standard", **{**quick, "epochs": 2}).fit(X, y).drop_rate_ == 0
    assert not Plan("classification", 10, "standard", learns_rate=True).learning_epochs()


def test_other_words_are_refused():
    with pytest.raises(InputError, match="drop_rate is 'learned'"):
        RobustClassifier(drop_rate="learned").fit(*wrong_digits(0.0))
