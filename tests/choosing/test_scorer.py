"""The scorer inside scikit-learn's grid, and fitted models ranked on wrong rows."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import HuberRegressor, LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gradsieve import choose, noisy_score, rank_models
from gradsieve.choosing.sharpen import CONFIDENCE
from gradsieve.choosing.vote import noisy_mean
from gradsieve.errors import InputError


def wrong_digits(share=0.4, words=False):
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, random_state=0)
    is_wrong = np.random.default_rng(0).random(len(y)) < share
    given = np.where(is_wrong, (y + 1) % 10, y)
    names = np.array([f"digit {each}" for each in range(10)]) if words else np.arange(10)
    return X, names[given], X_test, names[y_test]


@pytest.mark.parametrize("words", [False, True])
def test_a_grid_finds_the_neighbours_that_outvote_wrong_labels(words):
    """One neighbour is sure of every label, wrong ones included; 800 outvote the right ones as well."""
    X, given, X_test, y_test = wrong_digits(words=words)
    grid = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 50, 800]}, scoring=noisy_score, cv=3).fit(X, given)
    assert grid.best_params_ == {"n_neighbors": 50}
    assert grid.score(X_test, y_test) > 0.7  # by the same scorer


def test_the_score_of_classes_is_what_the_vote_compares():
    X, given, X_test, y_test = wrong_digits(words=True)
    models = [KNeighborsClassifier(each).fit(X, given) for each in (1, 50)]
    choice = rank_models(dict(zip("ab", models, strict=True)), X_test, y_test)
    scores = [noisy_score(each, X_test, y_test) for each in models]
    assert choice.margins[1, 0] == pytest.approx(scores[1] - scores[0])
    assert choice.name == "b"


def test_real_targets_one_or_many():
    X, y = load_diabetes(return_X_y=True)
    wrong = np.random.default_rng(0).random(len(y)) < 0.3
    given = np.where(wrong, y + 2000 * X[:, 2] ** 2 * 400, y)
    parts = train_test_split(X, given, random_state=0)
    models = [kind.fit(parts[0], parts[2]) for kind in (LinearRegression(), HuberRegressor(max_iter=1000))]
    assert rank_models(models, parts[1], parts[3]).best == 1
    assert noisy_score(models[1], parts[1], parts[3]) > noisy_score(models[0], parts[1], parts[3])
    many = RandomForestRegressor(5, random_state=0).fit(X, np.stack([y, -y], 1))
    assert noisy_score(many, X, np.stack([y, -y], 1)) < 0
    single = [model.predict(parts[1]) for model in models]
    assert rank_models(models, parts[1], parts[3]).ranking == choose(np.stack(single), parts[3]).ranking


def test_pipelines_and_weights():
    X, given, _, _ = wrong_digits(share=0)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=50)).fit(X, given)
    weights = np.zeros(len(X))
    weights[:10] = 1
    assert noisy_score(model, X, given, weights) == pytest.approx(noisy_score(model, X[:10], given[:10]))


def test_labels_may_be_a_column():
    X, given, _, _ = wrong_digits(words=True)
    models = [KNeighborsClassifier(each).fit(X, given) for each in (200, 10)]
    assert noisy_score(models[0], X, given[:, None]) == noisy_score(models[0], X, given)
    assert rank_models(models, X, given[:, None]).best == rank_models(models, X, given).best


def test_an_estimator_that_knows_one_class_is_as_sure_as_any():
    X, given, _, _ = wrong_digits()
    score = noisy_score(KNeighborsClassifier().fit(X, 0 * given), X, 0 * given)
    assert score == pytest.approx(CONFIDENCE, abs=1e-5)


def test_bad_input():
    X, given, _, _ = wrong_digits()
    model = KNeighborsClassifier().fit(X, given)
    with pytest.raises(InputError, match=r"y\[0\]"):
        noisy_score(model, X[:3], [11, 1, 2])
    with pytest.raises(InputError, match=r"y\[1\] is None"):
        noisy_score(KNeighborsClassifier().fit(X, given.astype(str)), X[:3], np.array(["1", None, "2"], dtype=object))
    several = np.stack([given, given % 3], axis=1)
    with pytest.raises(InputError, match="y has 2 columns, but classes of one target are judged"):
        noisy_score(KNeighborsClassifier().fit(X, several), X, several)
    with pytest.raises(InputError, match="no predict_proba"):
        noisy_score(RidgeClassifier().fit(X, given), X, given)
    even = given % 2 == 0
    other = KNeighborsClassifier().fit(X[even], given[even])
    with pytest.raises(InputError, match="different classes"):
        rank_models([model, other], X[even], given[even])
    with pytest.raises(InputError, match="classifiers and regressors"):
        rank_models({"a": model, "b": KNeighborsRegressor().fit(X, given)}, X, given)
    one, two = KNeighborsRegressor().fit(X, given), KNeighborsRegressor().fit(X, given[:, None])
    with pytest.raises(InputError, match=r"a: \(3,\), b: \(3, 1\)"):
        rank_models({"a": one, "b": two}, X[:3], given[:3])
    with pytest.raises(InputError, match="empty"):
        rank_models([], X, given)


def test_the_mean_that_one_model_can_have():
    chances = np.array([[0.95, 0.05], [0.05, 0.95]])  # as sure as all are made
    assert noisy_mean(chances, np.array([0, 0])) == pytest.approx(0.5)
    hesitant = np.array([[0.6, 0.4], [0.4, 0.6]])
    assert noisy_mean(hesitant, np.array([0, 1])) == pytest.approx(0.95, abs=1e-5)
    given = np.array([[0.0], [1.0], [2.0], [3.0]])
    width = np.subtract(*np.quantile(given, (0.75, 0.25)))
    assert noisy_mean(given + 1, given) == pytest.approx(-1 / width)
