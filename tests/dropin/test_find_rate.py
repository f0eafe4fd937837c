"""A drop rate for a loop of the user's own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from gradsieve import RobustLoss, find_drop_rate
from gradsieve.errors import InputError

EPOCHS = 6


@pytest.fixture(scope="module")
def digits():
    inputs, labels = load_digits(return_X_y=True)
    wrong = np.random.default_rng(0).random(len(labels)) < 0.3
    given = np.where(wrong, (labels + 1) % 10, labels)
    return torch.tensor(inputs[:1200] / 16).float(), torch.tensor(given[:1200])


def make_loop(inputs, targets, seen=None, epochs=EPOCHS):
    def fit(rate, rows):
        network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        robust = RobustLoss(F.cross_entropy, rate, ramp=3)
        optimizer = torch.optim.Adam(network.parameters(), 0.02)
        if seen is not None:
            seen.append((rate, rows, network[0].weight.detach().clone()))
        for _ in range(epochs):
            for batch in rows[torch.randperm(len(rows))].split(100):
                optimizer.zero_grad()
                robust(network(inputs[batch]), targets[batch]).backward()
                optimizer.step()
            robust.step()
            yield lambda others: network(inputs[others]).softmax(1)

    return fit


def test_the_rate_is_found_and_the_callers_random_numbers_stay(digits):
    seen, before = [], torch.get_rng_state()
    pick = find_drop_rate(make_loop(*digits, seen), digits[1], epochs=EPOCHS)
    assert torch.equal(before, torch.get_rng_state())
    assert 0.2 <= pick.rate <= 0.4
    assert abs(pick.estimate - 0.3) < 0.07
    # all candidates of a part start from the same weights, and predict for rows that they were not trained on
    parts = {tuple(rows.tolist()) for _, rows, _ in seen}
    assert len(parts) == 5
    for part in parts:
        weights = [weight for _, rows, weight in seen if tuple(rows.tolist()) == part]
        assert len(weights) == 6
        assert all(torch.equal(weights[0], each) for each in weights)


def test_same_seed_same_pick(digits):
    some = slice(0, 400)
    inputs, targets = digits[0][some], digits[1][some]
    picks = [find_drop_rate(make_loop(inputs, targets, epochs=3), targets, epochs=3, seed=5) for _ in range(2)]
    assert picks[0].to_json() == picks[1].to_json()


def test_votes_count_by_their_weights(digits):
    """If wrong rows have weight 0, no row seems wrong."""
    inputs, given = digits[0][:600], digits[1][:600]
    right = given.numpy() == load_digits(return_X_y=True)[1][:600]
    loop = make_loop(inputs, given)
    plain, weighted = (find_drop_rate(loop, given, epochs=EPOCHS, weights=each) for each in (None, right))
    assert plain.estimate > 0.2
    assert weighted.estimate < 0.1


def test_few_rows_choose_nothing(digits):
    pick = find_drop_rate(make_loop(*digits), digits[1][:150], epochs=3)
    assert pick.rate == 0
    assert "too few" in pick.warning


def test_bad_loops(digits):
    inputs, targets = digits
    with pytest.raises(InputError, match="must be a generator"):
        find_drop_rate(lambda rate, rows: None, targets, epochs=3)
    with pytest.raises(InputError, match=r"weights must be \d+ numbers, one for each row, but are int64 of \(2,\)"):
        find_drop_rate(make_loop(inputs, targets), targets, epochs=3, weights=[1, 2])
    with pytest.raises(InputError, match=r"targets has the shape \(\)"):
        find_drop_rate(make_loop(inputs, targets), 3, epochs=3)
    with pytest.raises(InputError, match=r"targets\[7\] is not finite"):
        find_drop_rate(make_loop(inputs, targets), np.where(np.arange(300) == 7, np.nan, 0.0), epochs=3)
    untouched = pytest.fail  # a loop that must not be begun
    with pytest.raises(InputError, match=r"targets\[0\] is 'a', but targets must be numbers"):
        find_drop_rate(untouched, np.array(["a", "b"] * 150), epochs=3)
    with pytest.raises(InputError, match=r"targets\[137\] is -1, but classes are numbered from 0"):
        find_drop_rate(untouched, np.where(np.arange(300) == 137, -1, 1), epochs=3)
    for weight, says in ((np.nan, "is nan"), (-1.0, "is -1.0")):
        with pytest.raises(InputError, match=rf"weights\[5\] {says}"):
            find_drop_rate(untouched, targets, epochs=3, weights=np.where(np.arange(len(targets)) == 5, weight, 1.0))
    with pytest.raises(InputError, match="not all of them 0"):
        find_drop_rate(untouched, targets, epochs=3, weights=np.zeros(len(targets)))
    with pytest.raises(InputError, match="epochs is 0"):
        find_drop_rate(make_loop(inputs, targets), targets, epochs=0)
    with pytest.raises(InputError, match="None as number 2 of 3 epochs"):
        find_drop_rate(lambda rate, rows: iter([lambda others: targets[others]]), targets, epochs=3)
    with pytest.raises(InputError, match="array"):
        find_drop_rate(lambda rate, rows: iter([np.zeros(3)]), targets, epochs=1)
    with pytest.raises(InputError, match="asked about"):
        find_drop_rate(lambda rate, rows: iter([lambda others: np.zeros((7, 10))]), targets, epochs=1)
    one_hot = F.one_hot(targets, 10).float()
    with pytest.raises(InputError, match="probabilities"):
        find_drop_rate(lambda rate, rows: iter([lambda others: 9 * one_hot[others]]), targets, epochs=1)


def test_a_loop_that_begins_before_it_is_asked_draws_the_same_random_numbers(digits):
    """No generator, but a function that builds its network at once."""
    inputs, _ = digits
    first, before = [], torch.get_rng_state()

    def fit(rate, rows):
        network = nn.Linear(64, 10)
        first.append(network.weight.detach().clone())
        return iter([lambda others: network(inputs[others]).softmax(1)] * EPOCHS)

    find_drop_rate(fit, digits[1], epochs=EPOCHS)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(each, first[0]) for each in first)


def test_a_network_of_one_output_is_judged_as_one_of_two(digits):
    """With targets 0 and 1, a single column is the probability of class 1, and logits are refused."""
    inputs, random = digits[0][:600], np.random.default_rng(0)
    right = load_digits(return_X_y=True)[1][:600] > 4
    given = torch.tensor(np.where(random.random(600) < 0.25, ~right, right)).long()

    def loop(answer):
        def fit(rate, rows):
            network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
            robust = RobustLoss(nn.BCEWithLogitsLoss(), rate, ramp=2)
            optimizer = torch.optim.Adam(network.parameters(), 0.02)
            for _ in range(EPOCHS):
                for batch in rows[torch.randperm(len(rows))].split(100):
                    optimizer.zero_grad()
                    robust(network(inputs[batch]), given[batch].float()).backward()
                    optimizer.step()
                robust.step()
                yield lambda others: answer(network(inputs[others]))

        return fit

    one = find_drop_rate(loop(torch.sigmoid), given, epochs=EPOCHS)
    two = find_drop_rate(loop(lambda z: torch.stack([1 - z.sigmoid(), z.sigmoid()], 1)), given, epochs=EPOCHS)
    assert one.estimate > 0.1
    assert (one.rate, one.estimate) == (two.rate, pytest.approx(two.estimate, abs=1e-3))
    with pytest.raises(InputError, match="Apply sigmoid to logits"):
        find_drop_rate(loop(torch.Tensor.detach), given, epochs=EPOCHS)


def test_classes_as_binary_cross_entropy_takes_them_are_told_once_and_at_the_callers_line():
    given = torch.tensor([0.0, 1.0]).repeat(300)

    def fit(rate, rows):
        yield from [lambda others: torch.rand(len(others))] * 3

    with pytest.warns(UserWarning, match=r"targets\.long\(\)") as told:
        find_drop_rate(fit, given, epochs=3)
    assert {each.filename for each in told} == {__file__}
