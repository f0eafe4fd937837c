"""drop_rate="auto": what it picks on real rows, clean and wrong, and what it promises about them."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from gradsieve import RobustClassifier, RobustRegressor
from gradsieve.choosing import RATES, electorate
from gradsieve.estimators import auto_rate, fitting
from gradsieve.files.fit import fit_file

quick = {"hidden": (64,), "epochs": 20, "learning_rate": 3e-3, "random_state": 0}
brief = {**quick, "epochs": 5}  # where it does not matter what is picked


@pytest.fixture
def _two_parts(monkeypatch):
    """Of the rows, so that a candidate is two networks: quicker than five."""
    monkeypatch.setattr(electorate, "MOST_PARTS", 2)


def wrong_digits(share, seed=0):
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, random_state=seed)
    is_wrong = np.random.default_rng(seed).random(len(y)) < share
    return X, np.where(is_wrong, (y + 1) % 10, y), X_test, y_test


def wrong_curve(share, rows=1200, outputs=2, seed=0):
    """Smooth targets with a little noise; the wrong ones follow another function of the inputs."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 4))
    y = np.sin(X @ random.normal(size=(4, outputs))) + 0.05 * random.normal(size=(rows, outputs))
    given = np.where(random.random((rows, 1)) < share, X @ random.normal(size=(4, outputs)) * 3, y)
    return X, given, y


@pytest.mark.usefixtures("_two_parts")
def test_clean_digits_lose_nothing():
    X, given, X_test, y_test = wrong_digits(0.0)
    auto, plain = (RobustClassifier(drop_rate=rate, **quick).fit(X, given) for rate in ("auto", 0.0))
    assert auto.score(X_test, y_test) >= plain.score(X_test, y_test) - 0.005
    assert auto.corruption_rate_ < 0.05


def test_wrong_digits_are_noticed():
    X, given, X_test, y_test = wrong_digits(0.3)
    auto, plain = (RobustClassifier(drop_rate=rate, **quick).fit(X, given) for rate in ("auto", 0.0))
    assert 0.1 < auto.drop_rate_ <= 0.5
    assert auto.score(X_test, y_test) > plain.score(X_test, y_test) + 0.05
    assert auto.corruption_rate_ == pytest.approx(0.3, abs=0.08)
    assert auto.rate_interval_[0] < auto.corruption_rate_ < auto.rate_interval_[1]
    assert auto.kept_.mean() == pytest.approx(1 - auto.drop_rate_, abs=0.01)
    assert auto.rate_choice_.name == auto.rate_pick_.winner <= auto.drop_rate_
    assert auto.rate_pick_.rates == RATES


@pytest.mark.usefixtures("_two_parts")
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_real_targets(share):
    X, given, y = wrong_curve(share)
    auto, plain = (RobustRegressor(drop_rate=rate, **quick).fit(X, given) for rate in ("auto", 0.0))
    assert auto.score(X, y) >= plain.score(X, y) - 0.01 + share
    assert auto.corruption_rate_ == pytest.approx(
        share, abs=0.13
    )  # some wrong targets happen to be near the right ones
    assert (auto.drop_rate_ > 0) == (share > 0)


@pytest.mark.usefixtures("_two_parts")
def test_where_wrong_targets_are_almost_half_the_tie_breaker_helps():
    """The vote alone hardly tells rate 0 from the others here: 55 rows of 100 against 45."""
    X, given, y = wrong_curve(0.45, rows=1500, outputs=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The held-out rows cannot tell")
        auto, plain = (RobustRegressor(drop_rate=rate, **quick).fit(X, given) for rate in ("auto", 0.0))
    assert auto.drop_rate_ >= 0.2
    assert auto.score(X, y) > plain.score(X, y) + 0.2


@pytest.mark.usefixtures("_two_parts")
@pytest.mark.filterwarnings("ignore:The held-out rows cannot tell")
def test_a_pick_is_a_function_of_the_rows_and_the_seed_and_nothing_else():
    X, given, _ = wrong_curve(0.2, rows=300)
    shuffle = np.random.default_rng(1).permutation(len(X))
    models = [RobustRegressor(drop_rate="auto", **brief).fit(X[order], given[order]) for order in (..., ..., shuffle)]
    first = models[0]
    for other in models[1:]:
        assert other.rate_pick_.to_json() == first.rate_pick_.to_json()
        np.testing.assert_array_equal(other.predict(X), first.predict(X))


@pytest.mark.usefixtures("_two_parts")
@pytest.mark.filterwarnings("ignore:The held-out rows cannot tell")
def test_nor_does_the_order_of_rows_that_differ_in_their_weights_alone():
    """Not all of these rows vote in the same part, or train the same candidates."""
    X, given, _ = wrong_curve(0.2, rows=100)
    X, given, weights = X.repeat(3, 0), given.repeat(3, 0), np.random.default_rng(0).uniform(0.2, 2, 300)
    shuffle = np.random.default_rng(1).permutation(len(X))
    first, second = (
        RobustRegressor(drop_rate="auto", **brief).fit(X[order], given[order], sample_weight=weights[order])
        for order in (np.arange(300), shuffle)
    )
    assert first.rate_pick_.to_json() == second.rate_pick_.to_json()
    np.testing.assert_array_equal(first.predict(X), second.predict(X))


@pytest.mark.filterwarnings("ignore:The held-out rows cannot tell")
def test_the_final_network_is_the_one_that_the_chosen_rate_gives():
    X, given, _ = wrong_curve(0.3, rows=400)
    auto = RobustRegressor(drop_rate="auto", **brief).fit(X, given)
    known = clone(auto).set_params(drop_rate=auto.drop_rate_).fit(X, given)
    np.testing.assert_array_equal(auto.predict(X), known.predict(X))
    assert known.rate_pick_ is known.rate_choice_ is known.rate_interval_ is None
    assert known.corruption_rate_ == known.drop_rate_ == auto.drop_rate_


def test_few_rows_drop_nothing_and_say_so():
    X, y = load_diabetes(return_X_y=True)
    with pytest.warns(UserWarning, match="100 rows are too few") as caught:
        model = RobustRegressor(drop_rate="auto", **quick).fit(X[:100], y[:100])
    assert model.drop_rate_ == 0
    assert caught[0].filename == __file__  # the line that called fit


def test_a_method_that_drops_nothing_has_nothing_to_choose(recwarn):
    X, y = load_diabetes(return_X_y=True)
    model = RobustRegressor("standard", "auto", **quick).fit(X, y)
    assert model.drop_rate_ == model.corruption_rate_ == 0
    assert not [each for each in recwarn if "rows" in str(each.message)]


@pytest.mark.filterwarnings("ignore:The held-out rows cannot tell")
@pytest.mark.parametrize("settings", [{"early_stopping": True}, {"method": "co-prl-l"}, {"sample_weight": True}])
def test_with_early_stopping_two_networks_and_weights(settings):
    X, given, _ = wrong_curve(0.3, rows=400)
    weights = {"sample_weight": np.arange(400) % 3} if settings.pop("sample_weight", False) else {}
    model = RobustRegressor(drop_rate="auto", **{**brief, **settings}).fit(X, given, **weights)
    assert model.rate_pick_.winner in RATES
    assert np.isfinite(model.predict(X)).all()


def test_many_rows_are_fitted_for_few(monkeypatch):
    """Of 40,000 rows 6,400 are trained on by candidates: the cost is well below that of the fit."""
    visited = []

    def make_trainer(plan, rows, order, *rest):
        visited.append(len(order))
        return fitting.make_trainer(plan, rows, order, *rest)

    monkeypatch.setattr(auto_rate, "make_trainer", make_trainer)
    X, given, _ = wrong_curve(0.1, rows=40_000, outputs=1)
    RobustRegressor(drop_rate="auto", hidden=(4,), epochs=1, random_state=0).fit(X, given)
    assert visited == [6_400] * 6


@pytest.mark.usefixtures("_two_parts")
def test_a_file_of_ones_own(tmp_path):
    X, given, _ = wrong_curve(0.3, rows=400, outputs=1)
    table = np.column_stack([X, given])
    np.savetxt(tmp_path / "data.csv", table, delimiter=",", header="a,b,c,d,y", comments="")
    notes = []
    summary = fit_file(tmp_path / "data.csv", ["y"], tmp_path / "model", drop_rate="auto", epochs=10, note=notes.append)
    assert summary["drop_rate"] == summary["pick"]["rate"] > 0
    assert any((summary["pick"]["warning"] or "seem wrong") in note for note in notes)
    assert (tmp_path / "model" / "model.json").read_text().count('"pick"') == 1


@pytest.mark.usefixtures("_two_parts")
@pytest.mark.filterwarnings("ignore:The held-out rows cannot tell")
@pytest.mark.parametrize("rows", [400, 6000])
def test_voters_are_asked_about_the_fit_that_counts_which_is_made_once(rows, monkeypatch):
    X, given, _ = wrong_curve(0.3, rows=rows)
    made = []
    make = fitting.fit_networks
    monkeypatch.setattr(fitting, "fit_networks", lambda plan, *rest: made.append(plan.drop_rate) or make(plan, *rest))
    model = RobustRegressor(drop_rate="auto", **brief).fit(X, given)
    assert made == [model.drop_rate_]
    assert model.drop_rate_ > 0


@pytest.mark.usefixtures("_two_parts")
@pytest.mark.parametrize("rows", [400, 6000])
def test_a_fit_that_goes_another_way_than_its_voters_want_is_made_anew_without_dropping(rows, monkeypatch):
    X, given, _ = wrong_curve(0.3, rows=rows)
    make = fitting.fit_networks

    def astray(plan, inputs, targets, *rest):
        return make(plan, inputs, -targets if plan.drop_rate else targets, *rest)

    monkeypatch.setattr(fitting, "fit_networks", astray)
    with pytest.warns(UserWarning, match="contradict each other, so nothing is dropped"):
        model = RobustRegressor(drop_rate="auto", **brief).fit(X, given)
    plain = clone(model).set_params(drop_rate=0.0).fit(X, given)
    assert model.drop_rate_ == 0 < model.rate_pick_.winner
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))


@pytest.mark.filterwarnings("ignore:The held-out rows cannot tell")
def test_amounts_of_which_a_few_are_far_larger_lose_nothing_if_none_is_wrong():
    """Giving the large ones up brings a network nearer to most rows, which is no reason to do it."""
    random = np.random.default_rng(8)
    X = random.normal(size=(300, 8))
    y = np.exp(np.sin(2 * X[:, 0]) + 0.5 * X[:, 3] + 0.5 * X[:, 1]) + 0.05 * random.normal(size=300)
    model = RobustRegressor(drop_rate="auto", epochs=40, random_state=0).fit(X, y)
    assert model.drop_rate_ == 0
