"""The estimators on real data, in scikit-learn's own company, and what they promise about rows and weights."""

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from gradsieve import RobustClassifier, RobustRegressor
from gradsieve.data import Rows
from gradsieve.errors import GradsieveError, InputError
from gradsieve.estimators import trainer
from gradsieve.estimators.fitting import make_trainer
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rows import is_copies
from gradsieve.estimators.trainer import trimmed_mean
from gradsieve.models.mlp import mlp

quick = {"hidden": (32,), "epochs": 15, "learning_rate": 5e-3, "random_state": 0}


def wrong_digits(share=0.4, seed=0):
    """Digits, a share of the training labels moved to the next class."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=seed)
    random = np.random.default_rng(seed)
    is_wrong = random.random(len(y_train)) < share
    return X_train, np.where(is_wrong, (y_train + 1) % 10, y_train), X_test, y_test, is_wrong


def wrong_line(rows=400, outputs=1, share=0.3, seed=0):
    """Targets that are linear in the inputs, a share of them replaced by noise a thousand times as large."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 5))
    y = X @ random.normal(size=(5, outputs)) + 100
    is_wrong = np.arange(rows) < share * rows
    given = y.copy()
    given[is_wrong] = random.uniform(-1e4, 1e4, (is_wrong.sum(), outputs))
    return X, given, y, is_wrong


def test_wrong_labels_are_survived_and_found():
    X, y, X_test, y_test, is_wrong = wrong_digits()
    robust = RobustClassifier(drop_rate=0.4, epochs=60, hidden=(128,), random_state=0).fit(X, y)
    plain = RobustClassifier("standard", epochs=60, hidden=(128,), random_state=0).fit(X, y)
    assert robust.score(X_test, y_test) > plain.score(X_test, y_test) + 0.1
    assert robust.corruption_rate_ == 0.4
    assert plain.corruption_rate_ == 0
    assert plain.kept_.all()
    assert robust.kept_.sum() == int(0.6 * len(y))
    assert is_wrong[~robust.kept_].mean() > 0.8
    assert robust.row_scores_[is_wrong].mean() > 2 * robust.row_scores_[~is_wrong].mean()


@pytest.mark.parametrize("stopping", [False, True])
def test_a_last_step_that_goes_to_infinity_is_no_model(stopping):
    """The loss of that step is finite: it was computed before."""
    X, y, *_ = wrong_line(64, share=0)
    model = RobustRegressor(epochs=1, batch_size=64, learning_rate=1e30, early_stopping=stopping, random_state=0)
    with pytest.raises(GradsieveError, match=r"After the last step.* diverged\. Try a smaller learning_rate.*1e\+30"):
        model.fit(X, y)


def test_rows_that_a_whole_epoch_left_out_are_in_the_books():
    """Else a row's mean score would be that of the epochs which kept it, and no row would ever be dropped."""
    X, y, *_, is_wrong = (each[:1000] for each in wrong_digits(0.3))
    settings = {"drop_rate": 0.3, "schedule": "constant", "method_options": {"level": "data"}, "batch_size": 100}
    model = RobustClassifier("spl", **settings, **quick).fit(X, y)
    assert (model.times_seen_ == 15).all()
    assert model.times_dropped_.sum() == 15 * 300
    share = model.times_dropped_ / model.times_seen_
    assert share[is_wrong].mean() > 2 * share[~is_wrong].mean()


@pytest.mark.parametrize("outputs", [1, 3])
def test_wrong_targets_are_survived_and_found(outputs):
    X, given, y, is_wrong = wrong_line(outputs=outputs)
    # More than are wrong: some batches hold more of them than the whole table does.
    model = RobustRegressor(drop_rate=0.4, epochs=60, random_state=0).fit(X, given)
    assert model.score(X[~is_wrong], y[~is_wrong]) > 0.9
    assert not (model.kept_ & is_wrong).any()
    assert model.predict(X).shape == y.shape
    assert model.predict(X).dtype == np.float64


def test_a_column_of_targets_comes_back_as_one():
    X, given, _, _ = wrong_line()
    assert RobustRegressor(**quick).fit(X, given.ravel()).predict(X).shape == (400,)


def test_pipeline_grid_clone_and_pickle():
    X, y = load_diabetes(return_X_y=True)
    grid = GridSearchCV(
        make_pipeline(StandardScaler(), RobustRegressor(**quick)),
        {"robustregressor__drop_rate": np.array([0.0, 0.2]), "robustregressor__epochs": np.array([5, 20])},
        cv=2,
    ).fit(X, y)
    assert grid.best_score_ > 0.2
    model = grid.best_estimator_[-1]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert clone(model).get_params() == model.get_params()
    assert model.n_features_in_ == 10


@pytest.mark.parametrize("method", ["prl-l", "co-prl-l", "standard"])
def test_the_order_of_the_rows_makes_no_difference(method):
    X, y, X_test, *_ = wrong_digits()
    X, y = X[:200], y[:200]
    order = np.random.default_rng(1).permutation(len(X))
    first = RobustClassifier(method, **quick).fit(X, y)
    second = RobustClassifier(method, **quick).fit(X[order], y[order])
    np.testing.assert_array_equal(first.predict_proba(X_test), second.predict_proba(X_test))
    np.testing.assert_array_equal(first.row_scores_[order], second.row_scores_)
    np.testing.assert_array_equal(first.kept_[order], second.kept_)


@pytest.mark.parametrize(("least", "most", "whole"), [(0.2, 2, False), (1, 4, True)])
@pytest.mark.parametrize("stopping", [False, True])
def test_the_order_of_rows_that_differ_in_their_weights_alone_makes_none_either(least, most, whole, stopping):
    random = np.random.default_rng(0)
    X = random.integers(0, 3, (200, 3)).astype(float)
    y, weights, order = X @ [1, 2, 0], random.uniform(least, most, 200), random.permutation(200)
    weights = weights.round() if whole else weights
    model = RobustRegressor(early_stopping=stopping, **quick)
    first = model.fit(X, y, sample_weight=weights).predict(X)
    second = model.fit(X[order], y[order], sample_weight=weights[order]).predict(X)
    np.testing.assert_array_equal(first, second)


def test_whole_weights_are_copies_and_weight_zero_is_absence():
    X, given, _, _ = wrong_line(rows=60)
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = RobustRegressor(**quick).fit(X, given, sample_weight=weights)
    repeated = RobustRegressor(**quick).fit(X.repeat(weights, 0), given.repeat(weights, 0))
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))
    assert np.isnan(weighted.row_scores_[weights == 0]).all()
    assert not weighted.kept_[weights == 0].any()


def test_fractional_weights_are_relative():
    X, given, y, is_wrong = wrong_line()
    weights = np.where(is_wrong, 1e-6, 0.5)
    model = RobustRegressor("standard", epochs=60, random_state=0).fit(X, given, sample_weight=weights)
    assert model.score(X[~is_wrong], y[~is_wrong]) > 0.9
    scaled = RobustRegressor("standard", epochs=60, random_state=0).fit(X, given, sample_weight=weights * 1024)
    np.testing.assert_array_equal(model.predict(X), scaled.predict(X))


def test_a_seed_repeats_and_another_differs():
    X, y = load_diabetes(return_X_y=True)
    fit = lambda seed: RobustRegressor(**quick | {"random_state": seed}).fit(X, y).predict(X)  # noqa: E731
    np.testing.assert_array_equal(fit(1), fit(1))
    assert not np.array_equal(fit(1), fit(2))


def test_early_stopping_goes_back_to_the_best_weights():
    X, y = load_diabetes(return_X_y=True)
    model = RobustRegressor(
        drop_rate=0.1, early_stopping=True, epochs=200, ramp=1, n_iter_no_change=5, learning_rate=0.01, random_state=0
    ).fit(X, y)
    scores = [record["validation"] for record in model.history_]
    assert len(scores) < 200
    assert len(scores) - 1 - int(np.argmin(scores)) == 5
    assert np.isfinite(model.row_scores_).all()  # those of held-out rows too
    inputs, targets = torch.from_numpy(X).float(), torch.from_numpy((y - y.mean()) / y.std()).float()[:, None]
    learning = {"drop_rate": 0.1, "epochs": 100, "learning_rate": 0.02, "validation_fraction": 0.2, "patience": 5}
    plan = Plan(task="regression", outputs=1, method="prl-l", seed=0, device="cpu", **learning)
    trainer = make_trainer(
        plan, Rows(inputs, targets), torch.arange(len(X)), lambda number: mlp((10,), 1, hidden=(32,))
    )
    (network,), scores, seen = trainer.networks, [], []
    for record in trainer.epochs():
        scores.append(record["validation"])
        seen.append(network(inputs).detach())
    assert len(scores) < 100
    assert network(inputs).equal(seen[int(np.argmin(scores))])
    assert not network(inputs).equal(seen[-1])


def test_early_stopping_waits_for_the_whole_drop_rate():
    """Before it, the rows that will be dropped decide as well."""
    X, y = load_diabetes(return_X_y=True)
    options = {"early_stopping": True, "epochs": 60, "n_iter_no_change": 2, "learning_rate": 0.02, "random_state": 0}
    lengths = [RobustRegressor(drop_rate=0.1, ramp=ramp, **options).fit(X, y).n_iter_ for ramp in (1, 40)]
    assert lengths[0] < 40
    assert lengths[1] >= 42


def test_whole_weights_are_copies_while_an_epoch_stays_in_hand():
    assert is_copies(np.array([10.0, 1.0, 0.0]))
    assert not is_copies(np.array([29.0, 1.0, 1.0]))  # of three rows more than thirty
    assert not is_copies(np.array([1.5, 1.0, 1.0]))


def test_the_validation_score_is_the_trimmed_loss():
    """Held-out targets are as wrong as the others: they must not decide."""
    X, given, _, _ = wrong_line(rows=500, share=0.2)
    model = RobustRegressor(drop_rate=0.3, early_stopping=True, epochs=20, random_state=0).fit(X, given)
    assert model.history_[-1]["validation"] < 1  # the wrong ones would make it millions


class Tiny(nn.Module):
    """A network of the user's, which knows single precision only."""

    def __init__(self, features, outputs):
        super().__init__()
        self.layer = nn.Linear(features, outputs)

    def forward(self, inputs):
        return self.layer(inputs + torch.zeros(1, dtype=torch.float32, device=inputs.device))


@pytest.mark.parametrize("method", ["prl-l", "co-prl-l"])
@pytest.mark.parametrize("module", [Tiny(10, 1), lambda shape, outputs: Tiny(shape[0], outputs)])
def test_a_module_or_its_builder(module, method):
    X, y = load_diabetes(return_X_y=True)
    model = RobustRegressor(method, module=module, epochs=60, learning_rate=0.02, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.3
    assert isinstance(model.module_, Tiny)
    if method == "co-prl-l":
        first, second = (network.layer.weight for network in model.modules_)
        assert not torch.equal(first, second)


def test_a_builder_that_gives_one_module_twice_is_refused():
    """The second fit, of another fold say, would begin with what the first has learnt."""
    network, (X, y) = Tiny(10, 1), load_diabetes(return_X_y=True)
    regressor = RobustRegressor(module=lambda shape, outputs: network, epochs=1).fit(X, y)
    with pytest.raises(InputError, match=r"module gives a network with the parameter \S+ of one that it gave before"):
        regressor.fit(X, y)


def test_a_module_is_copied_and_stays_as_it_was():
    X, y = load_diabetes(return_X_y=True)
    module = Tiny(10, 1)
    before = module.layer.weight.clone()
    RobustRegressor(module=module, epochs=2).fit(X, y)
    assert torch.equal(module.layer.weight, before)


def test_the_callers_random_numbers_are_left_alone():
    X, y = load_diabetes(return_X_y=True)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    RobustRegressor(**quick).fit(X, y)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("rows", [2, 3, 17, 31])
@pytest.mark.parametrize("method", ["prl-l", "co-prl-l", "spl", "standard"])
def test_tiny_tables(rows, method):
    X, given, _, _ = wrong_line(rows=rows)
    for batch_size in ("auto", 2, 16):
        model = RobustRegressor(method, hidden=(4,), epochs=3, batch_size=batch_size).fit(X, given)
        assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_values_of_any_size(factor):
    X, given, y, _ = wrong_line(share=0.1)
    model = RobustRegressor(drop_rate=0.1, epochs=40, random_state=0).fit(X * factor, given * factor)
    assert np.corrcoef(model.predict(X * factor).ravel() / factor, y.ravel())[0, 1] > 0.9


def test_one_target_of_astronomical_size_changes_nothing():
    X, given, y, is_wrong = wrong_line(share=0.05)
    given[0] = 1e300
    model = RobustRegressor(drop_rate=0.1, schedule="constant", epochs=40, random_state=0).fit(X, given)
    assert not model.kept_[0]
    assert model.score(X[~is_wrong], y[~is_wrong]) > 0.9


def test_constant_columns_and_a_constant_target():
    X, given, _, _ = wrong_line(share=0)
    X[:, 1] = 7
    X[:, 2] = 0.1 + 0.2
    model = RobustRegressor(epochs=5).fit(X, given)
    assert np.isfinite(model.predict(X)).all()
    assert np.abs(RobustRegressor(epochs=40, random_state=0).fit(X, np.full(len(X), 5.0)).predict(X) - 5).max() < 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"drop_rate": 1.0}, "drop_rate is 1.0"),
        ({"drop_rate": "most"}, "drop_rate is 'most'"),
        ({"method": "prl"}, "Did you mean"),
        ({"method": "bootstrap"}, "made for classification"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 1}, "batch_size is 1"),
        ({"batch_size": "all"}, "batch_size is 'all'"),
        ({"learning_rate": -1}, "learning_rate is -1"),
        ({"hidden": 256}, "hidden is 256"),
        ({"input_clip": 0}, "input_clip is 0"),
        ({"module": 3}, "module is 3"),
        ({"module": nn.Linear(3, 1)}, "module cannot read"),
        ({"module": nn.Linear(10, 2)}, "module answers one row with (1, 2)"),
        ({"module": nn.Identity()}, "no trainable parameter"),
        ({"schedule": "ramps"}, "Did you mean"),
        ({"method_options": {"balanced": True}}, "no classes"),
        ({"early_stopping": True, "validation_fraction": 1.5}, "validation_fraction is 1.5"),
        ({"device": "gpu7"}, "device='gpu7'"),
    ],
)
def test_bad_parameters(settings, says):
    X, y = load_diabetes(return_X_y=True)
    with pytest.raises(InputError) as error:
        RobustRegressor(**settings).fit(X[:50], y[:50])
    assert says in str(error.value)


def test_bad_rows():
    X, y = load_digits(return_X_y=True)
    with pytest.raises(InputError, match="one class"):
        RobustClassifier(**quick).fit(X, np.zeros(len(X), dtype=int))
    with pytest.raises(ValueError, match=r"non-zero|0 for every row"):  # scikit-learn's own, where it has one
        RobustClassifier(**quick).fit(X, y, sample_weight=np.zeros(len(X)))
    with pytest.raises(ValueError, match="NaN"):
        RobustClassifier(**quick).fit(np.where(X == 16, np.nan, X), y)
    with pytest.raises(InputError, match="leaves none"):
        RobustRegressor(early_stopping=True).fit(X[:2], [1.0, 2.0], sample_weight=[1, 0])


def test_verbose_prints_the_last_epoch(capsys):
    X, y = load_diabetes(return_X_y=True)
    RobustRegressor(verbose=True, **quick).fit(X, y)
    assert "epoch 15/15" in capsys.readouterr().out


def test_the_default_network_is_the_mlp():
    X, y = load_diabetes(return_X_y=True)
    model = RobustRegressor(epochs=1).fit(X, y)
    assert str(model.module_) == str(mlp((10,), 1, hidden=(256, 256)))
    builder = partial(mlp, hidden=(8,))
    assert RobustRegressor(epochs=1, module=builder).fit(X, y).module_[1].out_features == 8


def test_in_a_process_group_an_estimator_fits_alone(monkeypatch):
    """One rank may fit and the other not, or to other rows: a message would wait for ever, or mix their rows."""
    X, y = load_diabetes(return_X_y=True)
    expected = RobustRegressor(**quick).fit(X, y).predict(X)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert np.array_equal(RobustRegressor(**quick).fit(X, y).predict(X), expected)


def test_a_builder_that_cannot_be_called_or_builds_nothing_is_named():
    class Ready(nn.Module):
        def __init__(self):
            super().__init__()

    X, y = load_diabetes(return_X_y=True)
    with pytest.raises(InputError, match=r"Ready'>, but is called with .* too many positional arguments"):
        RobustRegressor(epochs=1, module=Ready).fit(X, y)
    with pytest.raises(InputError, match=r"gives NoneType, but must give an nn\.Module"):
        RobustRegressor(epochs=1, module=lambda input_shape, outputs: None).fit(X, y)


@pytest.mark.parametrize("method", ["prl-l", "co-prl-l"])
def test_small_batches_go_through_in_one_pass_with_the_same_outcome(method):
    X, y, *_ = wrong_digits()
    two = {"passes": "reforward"}
    one, other = (RobustClassifier(method, 0.4, method_options=way, **quick).fit(X, y) for way in (None, two))
    assert np.allclose(one.row_scores_, other.row_scores_, atol=1e-3)
    assert (one.times_dropped_ == other.times_dropped_).mean() > 0.99


def test_rows_that_meet_are_seen_in_two_passes():
    """BatchNorm: in one pass, the rows that are dropped would be in its statistics."""
    X, y, *_ = wrong_digits()
    network = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    settings = {**quick, "epochs": 3, "module": network}
    ways = (None, {"passes": "reforward"}, {"passes": "index"})
    default, two, one = (RobustClassifier(drop_rate=0.4, method_options=way, **settings).fit(X, y) for way in ways)
    assert np.array_equal(default.row_scores_, two.row_scores_)
    assert not np.array_equal(default.row_scores_, one.row_scores_)


def test_threads_do_not_share_random_numbers():
    """Fits beside each other are those one after the other, and leave the caller's generator alone."""
    random = np.random.default_rng(0)
    X, y = random.normal(size=(60, 4)), random.integers(2, size=60)

    def fitted(seed):
        return RobustClassifier(hidden=(8,), epochs=3, random_state=seed).fit(X, y).predict_proba(X)

    alone = [fitted(seed) for seed in range(12)]
    before = torch.random.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fitted, range(12)))
    assert all(map(np.array_equal, alone, together))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_default_dtype_of_torch_does_not_matter():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(60, 4)), random.normal(size=60)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = RobustRegressor(hidden=(8,), epochs=1, random_state=0).fit(X, y)
    finally:
        torch.set_default_dtype(before)
    same = RobustRegressor(hidden=(8,), epochs=1, random_state=0).fit(X, y)
    assert (model.predict(X) == same.predict(X)).all()


@pytest.mark.parametrize("drop_rate", [0.1, "auto"])
def test_a_fit_needs_no_gradients_of_the_program_around(drop_rate):
    """Many programs that use networks switch them off for good."""
    random = np.random.default_rng(0)
    X, y = random.normal(size=(200, 4)), random.normal(size=200)
    model = RobustRegressor(drop_rate=drop_rate, hidden=(8,), epochs=1, random_state=0)
    expected = model.fit(X, y).predict(X)
    with torch.no_grad():
        found = model.fit(X, y).predict(X)
        assert not torch.is_grad_enabled()
    assert (found == expected).all()
    with torch.inference_mode():
        assert (model.predict(X) == expected).all()
        with pytest.raises(InputError, match=r"Train outside of it, or use torch.no_grad"):
            model.fit(X, y)


def test_one_class_is_told_in_its_own_words():
    with pytest.raises(InputError, match="y holds one class, 'cat', but"):
        RobustClassifier().fit(np.zeros((5, 2)), ["cat"] * 5)


def rare(rows=1200):
    """Two classes that can be told apart; one row in twenty is of the second."""
    X = np.random.default_rng(0).normal(size=(rows, 4))
    return X, np.where(X[:, 0] + X[:, 1] > 2.3, "rare", "usual")


@pytest.mark.filterwarnings("default:In epoch")
def test_a_class_that_is_given_up_is_told_with_what_helps(recwarn):
    X, y = rare()
    model = RobustClassifier(epochs=20, hidden=(16,), learning_rate=0.01, random_state=0).fit(X, y)
    (told,) = recwarn.list
    assert "In epoch 20, 0% of the rows of class rare were kept, and 80% of all." in str(told.message)
    assert "(method_options={'balanced': True})" in str(told.message)
    assert told.filename == __file__
    assert (model.predict(X) == "usual").all()
    recwarn.clear()
    model.set_params(method_options={"balanced": True}).fit(X, y)
    assert (model.predict(X[y == "rare"]) == "rare").mean() > 0.9
    assert not recwarn.list


def test_logarithms_of_probabilities():
    X, y = rare(200)
    model = RobustClassifier(epochs=2, hidden=(4,), drop_rate=0.0, random_state=0).fit(X, y)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))


def test_equal_whole_weights_are_copies_too():
    X, given, _, _ = wrong_line(rows=60)
    weighted = RobustRegressor(**quick).fit(X, given, sample_weight=np.full(60, 2))
    repeated = RobustRegressor(**quick).fit(X.repeat(2, 0), given.repeat(2, 0))
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))
    fractions, none = (RobustRegressor(**quick).fit(X, given, weights) for weights in (np.full(60, 0.3), None))
    np.testing.assert_array_equal(fractions.predict(X), none.predict(X))


def test_parameters_that_are_set_after_a_fit_hold_for_the_next():
    X, given, _, _ = wrong_line(rows=60)
    model = RobustRegressor(**quick).fit(X, given)
    before = model.predict(X)
    model.set_params(input_clip=float("inf"), decorrelate=False, module=Tiny(X.shape[1], 1))
    np.testing.assert_array_equal(model.predict(X), before)


def test_held_out_rows_are_trimmed_at_the_rate_that_was_learnt(monkeypatch):
    rates = []

    def noted(losses, rate, weights):
        rates.append(rate)
        return trimmed_mean(losses, rate, weights)

    monkeypatch.setattr(trainer, "trimmed_mean", noted)
    X, given, _, _ = wrong_line(rows=500, share=0.05)
    options = {"early_stopping": True, "epochs": 20, "n_iter_no_change": 20, "random_state": 0}
    model = RobustRegressor(drop_rate="learn", **options).fit(X, given)
    assert model.drop_rate_ < 0.1  # a fifth to begin with
    assert rates[-1] == model.drop_rate_


def test_a_mean_of_the_smallest_losses_counts_weights_as_copies():
    losses, weights = torch.tensor([5.0, 1, 9, 2, 3]), torch.tensor([1.0, 3, 1, 2, 1], dtype=torch.float64)
    copies = losses.repeat_interleave(weights.long())
    for rate in (0.0, 0.125, 0.25, 0.5):
        torch.testing.assert_close(trimmed_mean(losses, rate, weights).float(), trimmed_mean(copies, rate, None))


def test_right_amounts_that_are_far_larger_than_most_are_told():
    """Fifteen rows of a hundred are learnt as if they were much less: nobody who drops two would expect that."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    y = np.where(X[:, 0] > 1.04, 1000.0, 10 + X[:, 1])
    with pytest.warns(UserWarning, match="of the targets lie more than 5 .* 2% of the rows are dropped"):
        RobustRegressor(drop_rate=0.02, **quick).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RobustRegressor(drop_rate=0.0, **quick).fit(X, y)
        RobustRegressor(drop_rate=0.2, **quick).fit(X, y)
