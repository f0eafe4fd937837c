"""Networks that rival for rows are trained: the one learns the majority, the other what contradicts it."""

import numpy as np
import pytest
import torch

from gradsieve import RobustRegressor
from gradsieve.choosing.electorate import Part
from gradsieve.data import Rows
from gradsieve.errors import GradsieveError, InputError
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rivals import divided, fit_rivals, rival_schedule
from gradsieve.estimators.trainer import Trainer
from gradsieve.models.mlp import mlp


def table(rows=1200, wrong=0.45, seed=0):
    """Inputs, a truth, and targets of which some have the wrong sign."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 4))
    truth = np.tanh(X[:, 0]) + 0.5 * X[:, 1]
    return X, truth, np.where(random.random(rows) < wrong, -truth, truth)


def rivals_of(X, y, epochs=30, weights=None, held_out=300, norm="none", **settings):
    rows = Rows(torch.from_numpy(X).float(), torch.from_numpy(y[:, None]).float())
    order = torch.arange(len(X))
    part = Part(order[held_out:], order[:held_out], order[:0])
    plan = Plan("regression", 1, epochs=epochs, learning_rate=3e-3, device="cpu", **settings)
    return fit_rivals(plan, rows, part, lambda number: mlp((4,), 1, hidden=(32,), norm=norm), weights)


def test_one_learns_the_majority_and_the_other_what_contradicts_it():
    X, truth, y = table()
    first, second = rivals_of(X, y)[:, :, 0]
    assert np.corrcoef(first, truth[:300])[0, 1] > 0.97
    assert np.corrcoef(second, -truth[:300])[0, 1] > 0.97


def test_where_most_rows_are_wrong_the_wrong_ones_come_first():
    X, truth, y = table(wrong=0.6)
    first, _ = rivals_of(X, y)[:, :, 0]
    assert np.corrcoef(first, -truth[:300])[0, 1] > 0.9


def test_rivals_repeat_bit_for_bit():
    X, _, y = table(400)
    np.testing.assert_array_equal(rivals_of(X, y, epochs=6), rivals_of(X, y, epochs=6))


def test_rows_of_weight_zero_are_not_learnt_from():
    X, _, y = table(400)
    spoilt = y.copy()
    weights = (np.arange(400) % 2).astype(float)
    spoilt[weights == 0] = 1e6
    np.testing.assert_array_equal(rivals_of(X, y, 4, weights, held_out=0), rivals_of(X, spoilt, 4, weights, held_out=0))


def test_of_many_rows_some_are_learnt_from_in_fewer_epochs(monkeypatch):
    X, truth, y = table(3000)
    epochs_seen = []
    monkeypatch.setattr(
        "gradsieve.estimators.rivals.Trainer",
        lambda plan, *rest: epochs_seen.append(plan.epochs) or Trainer(plan, *rest),
    )
    said = rivals_of(X, y, 30)
    spoilt = y.copy()
    spoilt[2300:] = 1e6  # the first 300 vote
    np.testing.assert_array_equal(said, rivals_of(X, spoilt, 30))
    assert epochs_seen == [18, 18]
    assert np.corrcoef(said[0, :, 0], truth[:300])[0, 1] > 0.97


def test_batches_of_two_rows_are_not_halved():
    X, _, y = table(60)
    assert np.isfinite(rivals_of(X, y, 2, held_out=20, norm="batch", batch_size=2)).all()


def test_answers_beyond_all_numbers_are_a_training_that_diverged_and_no_fault_of_the_callers():
    X, _, y = table(400)
    X[:5] = 3e38  # voters
    with pytest.raises(GradsieveError, match="diverged") as caught:
        rivals_of(X, y, 2)
    assert not isinstance(caught.value, InputError)


def test_at_first_the_second_gets_what_the_first_would_drop():
    squares = torch.tensor([[4.0, 1.0, 3.0, 2.0, 0.0], [0.0] * 5])
    own = divided(squares, torch.zeros(5, 1), 0.4)
    assert own.tolist() == [[0, 1, 0, 1, 1], [1, 0, 1, 0, 0]]


def test_later_each_row_belongs_to_the_network_that_meets_it_and_what_nobody_meets_to_none():
    targets = torch.tensor([1.0] * 30 + [-1.0] * 20 + [5.0] * 3)[:, None]
    squares = torch.stack([((answer - targets) ** 2).mean(1) for answer in (torch.tensor(1.0), torch.tensor(-1.0))])
    own = divided(squares, targets, 0.0)
    assert own[0, :30].min() > 0.9
    assert own[1, 30:50].min() > 0.9
    assert own[:, 50:].max() < 0.1


def test_the_rate_rises_stays_and_goes():
    assert [rival_schedule(T, 0.4, 2) for T in range(1, 7)] == [0.2, 0.4, 0.4, 0.4, 0.0, 0.0]


def test_a_regressor_tells_how_many_targets_contradict_the_rest():
    X, truth, y = table(600, 0.45, seed=1)
    model = RobustRegressor(drop_rate="auto", hidden=(32,), epochs=20, learning_rate=3e-3, random_state=0)
    model.fit(X, y + 0.05 * np.random.default_rng(2).normal(size=len(y)))
    moved = (np.abs(y - truth) > 0.3).mean()
    assert model.corruption_rate_ == pytest.approx(moved, abs=0.05)  # 0.07 off without rivals
