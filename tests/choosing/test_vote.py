"""The vote against a naive count, on rows where it must be right, and on input that cannot work."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from gradsieve import choose, estimate_rate
from gradsieve.choosing.vote import noisy_mean
from gradsieve.errors import InputError

RANDOM = np.random.default_rng(0)


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def naive_margin(a, b, y):
    """One pair of models with one output, row by row."""
    width = np.subtract(*np.quantile(y, (0.75, 0.25)))
    limit = np.quantile(((a - b) / width) ** 2, 0.99)
    total = votes = 0.0
    for fa, fb, target in zip(a, b, y, strict=True):
        weight = min(((fa - fb) / width) ** 2, limit)
        total += weight
        votes += weight * (
            1 if abs(fa - target) < abs(fb - target) else -1 if abs(fa - target) > abs(fb - target) else 0
        )
    return votes / total


def test_margins_are_those_of_a_naive_count():
    y = RANDOM.normal(size=80)
    predictions = y + RANDOM.normal(size=(4, 80)) * np.array([0.1, 0.5, 1, 2])[:, None]
    choice = choose(predictions, y)
    for a in range(4):
        for b in range(4):
            expected = 0 if a == b else naive_margin(predictions[a], predictions[b], y)
            assert choice.margins[a, b] == pytest.approx(expected, abs=1e-12)
    assert choice.ranking == (0, 1, 2, 3)
    assert choice.decided
    assert choice.confidence == 1


def as_sure_as_all(logits):
    """Probabilities with the logits' multiple at which the favourites' mean is 0.95, by a naive search."""
    multiples = np.exp(np.linspace(-3, 4, 3000))
    return softmax(logits * min(multiples, key=lambda each: abs(softmax(logits * each).max(1).mean() - 0.95)))


def test_classes_are_judged_by_the_mean_probability_of_the_given_label_at_the_same_sureness():
    labels = RANDOM.integers(5, size=300)
    logits = RANDOM.normal(size=(3, 300, 5)) + np.eye(5)[labels] * np.array([0, 1, 3])[:, None, None]
    choice = choose(softmax(logits), labels)
    given = np.stack([as_sure_as_all(each)[np.arange(300), labels] for each in logits])  # (3, 300)
    np.testing.assert_allclose(choice.margins, given.mean(1)[:, None] - given.mean(1)[None], atol=1e-3)
    assert choice.errors[2, 1] == pytest.approx((given[2] - given[1]).std() / np.sqrt(300), rel=1e-2)
    assert choice.best == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.3, 3), min_size=3, max_size=3))
def test_how_sure_a_model_is_of_itself_makes_no_difference(multiples):
    """A tree is surer than nearest neighbours, and a network's last epoch than those before."""
    random = np.random.default_rng(0)
    labels = random.integers(4, size=500)
    logits = random.normal(size=(3, 500, 4)) + np.eye(4)[labels] * np.array([1, 1.5, 3])[:, None, None]
    choice = choose(softmax(logits * np.array(multiples)[:, None, None]), labels)
    assert choice.ranking == (2, 1, 0)
    np.testing.assert_allclose(choice.margins, choose(softmax(logits), labels).margins, atol=1e-3)


def test_the_epoch_before_wrong_labels_were_memorized():
    """Two labels of five are wrong: the longer a network learns, the surer it is, and the more often wrong."""
    X, y = load_digits(return_X_y=True)
    random, inputs = np.random.default_rng(0), torch.tensor(X / 16).float()
    wrong = random.random(len(y)) < 0.4
    noisy = np.where(wrong, (y + random.integers(1, 10, len(y))) % 10, y)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    chances, right = [], []
    for _ in range(40):
        for rows in torch.randperm(1000).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(inputs[rows]), torch.tensor(noisy)[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            chances.append(network(inputs[1000:]).softmax(1).numpy())
        right.append((chances[-1].argmax(1) == y[1000:]).mean())
    chosen = choose(chances, noisy[1000:]).best
    assert right[chosen] > max(right) - 0.04 > right[-1] + 0.05


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("outputs", [1, 3])
def test_wrong_rows_do_not_elect_the_model_that_follows_them(share, outputs):
    """The honest model, one that wrong rows have bent, and one that ignores the extremes."""
    truth = RANDOM.normal(size=(2000, outputs))
    lie = RANDOM.normal(size=outputs) * 6
    is_wrong = np.arange(2000) < share * 2000
    given = np.where(is_wrong[:, None], lie, truth + 0.1 * RANDOM.normal(size=truth.shape))
    bent = truth + 0.5 * (lie - truth) * max(share, 0.05)
    timid = np.clip(truth, -1.2, 1.2)
    predictions = np.stack([bent, timid, truth + 0.02 * RANDOM.normal(size=truth.shape)])
    assert choose(predictions, given).best == 2


def test_outputs_of_any_unit_weigh_alike():
    truth = RANDOM.normal(size=(500, 2))
    given = truth + 0.1 * RANDOM.normal(size=truth.shape)
    predictions = truth + np.array([[[0.3, 0]], [[0, 0.1]], [[0.3, 0.3]]])
    plain, scaled = choose(predictions, given), choose(predictions * [1e6, 1], given * [1e6, 1])
    np.testing.assert_allclose(plain.margins, scaled.margins)
    assert plain.ranking == scaled.ranking == (1, 0, 2)


def two_sides(first, second):
    """Predictions of two models, and targets of rows that vote for one of them, all with the same weight."""
    y = np.repeat([2.0, -2.0], [first, second])
    return np.stack([np.ones(len(y)), -np.ones(len(y))]), y


def test_a_lead_of_two_standard_errors_decides():
    one_error, three_errors = choose(*two_sides(55, 45)), choose(*two_sides(65, 35))
    assert one_error.margins[0, 1] / one_error.errors[0, 1] == pytest.approx(1, abs=0.1)
    assert three_errors.margins[0, 1] / three_errors.errors[0, 1] == pytest.approx(3, abs=0.2)
    assert (one_error.best, three_errors.best) == (0, 0)
    assert (one_error.decided, three_errors.decided) == (False, True)


@pytest.mark.parametrize("prefer", ["first", "baseline"])
def test_half_a_standard_error_is_the_leeway_of_a_preferred_model(prefer):
    assert choose(*two_sides(49, 51), prefer=prefer).best == 0  # a fifth of one behind
    assert choose(*two_sides(49, 51)).best == 1
    assert choose(*two_sides(45, 55), prefer=prefer).best == 1  # one behind


def test_the_first_of_equals_is_preferred_only_where_asked():
    y = RANDOM.normal(size=400)
    noise = 0.3 * RANDOM.normal(size=(2, 400))
    predictions = np.stack([y + noise[0], y + noise[1], y + 3])
    plain = choose(predictions, y)
    swapped = predictions[[plain.ranking[1], plain.ranking[0], 2]]
    assert choose(swapped, y).best == 1
    behind = -choose(swapped, y).margins[0, 1] / choose(swapped, y).errors[0, 1]
    assert choose(swapped, y, prefer="first").best == (0 if behind <= 0.5 else 1)
    assert choose(predictions[[2, 0]], y, prefer="first").best == 1  # not where the rows are sure
    later = swapped[[2, 0, 1]]
    assert choose(later, y, prefer="first").best == (1 if behind <= 0.5 else 2)
    assert choose(later, y, prefer="baseline").best == choose(later, y).best == 2
    assert choose(swapped, y, prefer="baseline").best == (0 if behind <= 0.5 else 1)
    same = choose(np.stack([y, y, y]), y, prefer="first")
    assert (same.best, same.decided, same.ranking) == (0, False, (0, 1, 2))


def test_weights_are_copies():
    y = RANDOM.normal(size=60)
    predictions, copies = y + RANDOM.normal(size=(3, 60)), RANDOM.integers(0, 2, size=60)
    weighted, repeated = choose(predictions, y, weights=copies), choose(predictions.repeat(copies, 1), y.repeat(copies))
    assert weighted.ranking == repeated.ranking
    labels = RANDOM.integers(3, size=60)
    chances, copies = softmax(RANDOM.normal(size=(3, 60, 3))), RANDOM.integers(0, 5, size=60)
    weighted = choose(chances, labels, weights=copies)
    repeated = choose(chances.repeat(copies, 1), labels.repeat(copies))
    np.testing.assert_allclose(weighted.margins, repeated.margins)


def test_the_same_seed_gives_the_same_confidence():
    y = RANDOM.normal(size=50)
    predictions = y + RANDOM.normal(size=(3, 50))
    first, second = choose(predictions, y, seed=1), choose(predictions, y, seed=1)
    assert first.confidence == second.confidence < 1
    np.testing.assert_array_equal(first.resampled, second.resampled)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 10**6))
def test_what_holds_of_every_choice(models, rows, seed):
    random = np.random.default_rng(seed)
    predictions, y = random.integers(-3, 4, size=(models, rows, 2)).astype(float), random.normal(size=(rows, 2))
    choice = choose(predictions, y, names=[f"model {each}" for each in range(models)])
    assert sorted(choice.ranking) == list(range(models))
    assert choice.best == choice.ranking[0]
    assert choice.name == f"model {choice.best}"
    np.testing.assert_array_equal(choice.margins, -choice.margins.T)
    assert (np.abs(choice.margins) <= 1 + 1e-12).all()
    order = random.permutation(rows)
    shuffled = choose(predictions[:, order], y[order])
    np.testing.assert_allclose(shuffled.margins, choice.margins, atol=1e-9)


@pytest.mark.parametrize(
    ("predictions", "targets", "options", "says"),
    [
        (np.zeros(5), np.zeros(5), {}, "shape (5,)"),
        ({"a": np.zeros(5), "b": np.ones(5)}, np.zeros(5), {}, "names=list(predictions)"),
        (np.zeros((1, 5)), np.zeros(5), {}, "a choice needs two"),
        (np.zeros((2, 5)), np.zeros(4), {}, "targets have the shape (4,)"),
        (np.zeros((2, 0)), np.zeros(0), {}, "no rows"),
        (np.zeros((2, 5, 3)), np.zeros((5, 2)), {}, "3 outputs a row, but targets 2"),
        (np.zeros((2, 5, 3)), np.zeros(5), {}, "must be integers"),
        (np.full((2, 5), np.nan), np.zeros(5), {}, "predictions[0, 0] is not finite"),
        (np.zeros((2, 5)), np.array([0, 0, np.inf, 0, 0]), {}, "targets[2] is not finite"),
        (np.ones((2, 5, 3)), np.zeros(5, dtype=int), {}, "softmax"),
        (np.full((2, 5, 2), 0.5), np.array([0, 1, 2, 0, 0]), {}, "targets[2] is 2"),
        (np.zeros((2, 5)), np.zeros(5), {"prefer": "last"}, "prefer is 'last'"),
        (np.zeros((2, 5)), np.zeros(5), {"names": ["a"]}, "names has 1"),
        (np.zeros((2, 5)), np.zeros(5), {"weights": [1, 2]}, "weights must be 5"),
    ],
)
def test_bad_input(predictions, targets, options, says):
    with pytest.raises(InputError) as error:
        choose(predictions, targets, **options)
    assert says in str(error.value)


def test_tensors_wherever_they_come_from():
    torch.manual_seed(0)
    targets = torch.rand(50)
    near, far = (targets + 0.1).requires_grad_(), (targets + 0.2).bfloat16()
    found = choose([near, far], targets, weights=torch.ones(50))
    assert found.best == choose(np.stack([near.detach(), far.float()]), targets.numpy()).best == 0
    assert estimate_rate(near, targets) == 0
    assert estimate_rate(near, targets.numpy().astype(object)) == 0  # as a column of a frame may hold them


@pytest.mark.parametrize(
    ("predictions", "targets", "message"),
    [
        ([[1.0, 2.0], [1.0]], [1.0, 2.0], "predictions are of unequal lengths"),
        (np.zeros((2, 3)), ["a", "b", "a"], r"targets\[0\] is 'a', but targets must be numbers"),
        (None, [1.0], "predictions is None, but predictions must be numbers"),
        (np.zeros((2, 3)), [1.0, 2.0, None], r"targets\[2\] is None, but targets must be numbers"),
    ],
)
def test_what_is_no_array_of_numbers_is_told(predictions, targets, message):
    with pytest.raises(InputError, match=message):
        choose(predictions, targets)


@pytest.mark.parametrize("rows", [1, 19, 21])
def test_models_that_differ_in_few_rows_are_told_apart_by_these(rows):
    y = RANDOM.normal(size=2000)
    worse = y.copy()
    worse[:rows] += 5
    assert choose([worse, y], y).best == 1


@pytest.mark.parametrize("unit", [0.01, 1, 1000])
def test_amounts_that_are_mostly_zero_are_judged_alike_in_every_unit(unit):
    """Half of them is one value, so that their quartiles say nothing about how much they differ."""
    random = np.random.default_rng(0)
    y = np.where(random.random(2000) < 0.8, 0, random.gamma(2, size=2000))
    said = y + 0.01 * random.normal(size=2000)
    given = np.where(random.random(2000) < 0.05, y + 3, y)
    assert estimate_rate(unit * said, unit * given) == pytest.approx(0.05, abs=0.015)


def two_classes(sureness):
    """The probability of class 1, and labels of which a quarter are wrong."""
    random = np.random.default_rng(0)
    place = 2 * random.normal(size=2000)
    given = np.where(random.random(2000) < 0.25, place <= 0, place > 0).astype(int)
    return 1 / (1 + np.exp(-sureness * place)), given


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [3, 10, 100])
def test_probabilities_may_be_of_half_precision(kind, classes):
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(classes, (2000,), generator=draw)
    logits = 3 * torch.randn(2, 2000, classes, generator=draw)
    found, expected = (choose(logits.to(each).softmax(2), targets) for each in (kind, torch.float32))
    assert found.best == expected.best


@pytest.mark.parametrize("sureness", [0.5, 1, 5])
@pytest.mark.parametrize("kind", [int, bool, np.uint8])
def test_a_column_of_probabilities_says_what_two_columns_say(sureness, kind):
    chance, given = two_classes(sureness)
    unsure = np.full_like(chance, 0.5)
    both = [np.stack([1 - each, each], 1) for each in (unsure, chance)]
    for one in ([unsure, chance], [unsure[:, None], chance[:, None]]):
        assert estimate_rate(one[1], given.astype(kind)) == estimate_rate(both[1], given) > 0.2
        assert np.array_equal(choose(one, given.astype(kind)).margins, choose(both, given).margins)
    assert estimate_rate(chance[:, None], given[:, None]) == estimate_rate(both[1], given)
    assert noisy_mean(chance, given) == noisy_mean(both[1], given)


def test_a_column_of_logits_is_refused():
    chance, given = two_classes(1)
    with pytest.raises(InputError, match=r"predictions\[0, \d+\] is .* sigmoid .* floats"):
        estimate_rate(np.log(chance / (1 - chance)), given)


@pytest.mark.parametrize("shape", [(2000,), (2000, 1)])
def test_classes_that_are_floats_are_told_to_be_integers(shape):
    """Binary cross-entropy wants them so. As real values, they hide how many labels are wrong."""
    chance, given = two_classes(1)
    targets = given.reshape(shape).astype(np.float32)
    with pytest.warns(UserWarning, match=r"targets.astype\(int\)") as told:
        assert estimate_rate(chance.reshape(shape), targets) < 0.2 < estimate_rate(chance.reshape(shape), given)
    with pytest.warns(UserWarning, match=r"targets.astype\(int\)"):
        choose([chance.reshape(shape), np.full(shape, 0.5)], torch.tensor(targets))
    assert told[0].filename == __file__


def test_logits_beside_classes_that_are_floats_are_told_to_be_probabilities_of_integers():
    """Binary cross-entropy with logits wants them so."""
    chance, given = two_classes(1)
    logits = np.log(chance / (1 - chance))
    with pytest.warns(UserWarning, match=r"targets.astype\(int\).*, and predictions after sigmoid"):
        assert estimate_rate(logits, given.astype(np.float32)) < 0.2 < estimate_rate(chance, given)


@pytest.mark.parametrize("numbers", [(-1, 1), (1, 2)])
def test_classes_of_other_numbers_are_told_how_to_be_0_and_1(numbers):
    chance, given = two_classes(1)
    targets = np.array(numbers)[given]
    with pytest.warns(UserWarning, match=f"targets == {numbers[1]}"):
        estimate_rate(chance, targets)
    assert estimate_rate(chance, targets == numbers[1]) == estimate_rate(chance, given)


@pytest.mark.parametrize("kind", [int, float])
def test_one_hot_targets_are_told_to_be_classes(kind):
    random = np.random.default_rng(0)
    chances, targets = random.dirichlet([1, 1, 1], 500), np.eye(3, dtype=kind)[random.integers(3, size=500)]
    with pytest.warns(UserWarning, match=r"targets\.argmax\(1\)"):
        estimate_rate(chances, targets)
    assert estimate_rate(chances, targets.argmax(1)) > 0.5


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [
        ([0.1, 0.2, 0.9, 1.2], [0.0, 0.0, 1.0, 1.0]),  # a prediction that is no probability
        ([0.1, 0.2, 0.9, 0.8], [0.0, 0.5, 1.0, 1.0]),
        ([0.1, 0.2, 0.1, 0.2], [0.0, 0.0, 0.0, 0.0]),
        ([0.1, 0.2, 0.9, 0.8], [0.0, 0.0, 1.3, 1.3]),  # as an estimator may scale them
        (np.full((4, 2), 0.5), [[0.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]),  # several labels of a row
        (np.full((4, 2), 0.4), [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),
    ],
)
def test_real_values_are_told_nothing(predictions, targets):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate_rate(predictions, targets)


def test_counts_and_floats_are_amounts():
    chance, given = two_classes(1)
    said, counts = 3 * chance, given + np.arange(2000) % 3
    assert estimate_rate(said, counts) == estimate_rate(said, counts.astype(float))
    assert choose([said - 1, said], given.astype(float)).margins.any()
