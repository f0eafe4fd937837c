"""Small mistakes, which a network that learned from too few right rows cannot see, are counted by a learning curve."""

import numpy as np
import pytest

from gradsieve.choosing.electorate import electorate
from gradsieve.choosing.estimate import honest_error, tolerance
from gradsieve.choosing.finer import counts, finer, is_worth_it
from gradsieve.choosing.rates import pick_rate, race
from gradsieve.errors import GradsieveError, InputError

ROWS = 4000
SPREAD = 0.15  # of honest residuals, in interquartile ranges


@pytest.fixture
def random():
    return np.random.default_rng(0)


def coarse(random, wrong=0.4, outputs=1, spread=SPREAD):
    """Targets (N, q), some of them off by up to 3 in every output, what a network says, and how far each is off."""
    truth = random.normal(size=(ROWS, outputs))
    off = np.where(random.random(ROWS) < wrong, 1.0, 0.0)[:, None] * random.uniform(-3, 3, (ROWS, outputs))
    return truth + off, truth + spread * random.normal(size=truth.shape), np.sqrt((off**2).sum(1))


@pytest.mark.parametrize("power", [0.0, 0.2, 0.5])
def test_residuals_are_a_power_of_the_rows(random, power):
    given, answers, _ = coarse(random, 0.0)
    truth = given
    lesser = truth + (answers - truth) * 4**power
    assert finer(answers, lesser, given, 0.25, 0.3) == pytest.approx(0.3**power, rel=0.02)


def test_residuals_fall_no_faster_than_the_error_of_a_mean_and_never_grow(random):
    given, answers, _ = coarse(random, 0.0)
    assert finer(answers, given + 9 * (answers - given), given, 0.25, 0.3) == pytest.approx(0.3**0.5, rel=1e-6)
    assert finer(answers, given + 0.5 * (answers - given), given, 0.25, 0.3) == 1
    assert finer(given, given, given, 0.25, 0.3) == 1  # no residuals at all


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("factor", [0.4, 0.6, 1.0])
def test_mistakes_are_counted_down_to_what_smaller_residuals_would_show(random, outputs, factor):
    given, answers, off = coarse(random, outputs=outputs)
    least = max(3.3 * factor * honest_error(answers, given), tolerance(given))
    assert counts(answers, given, factor).mean() == pytest.approx((off > least).mean(), abs=0.02)
    assert tolerance(given) < 3.3 * SPREAD * outputs**0.5  # so that the factor matters


def test_what_the_tolerance_allows_is_never_counted(random):
    given, answers, off = coarse(random, spread=0.01)
    for factor in (0.1, 1.0):
        assert counts(answers, given, factor).mean() == pytest.approx((off > tolerance(given)).mean(), abs=0.01)
    assert not counts(given, given, 0.5).any()
    assert counts(np.zeros((ROWS, 1)), np.where(np.arange(ROWS) % 4 == 0, 9.0, 0.0)[:, None], 0.5).mean() == 0.25


def test_it_is_worth_its_training_only_where_wrong_rows_lie_close_by(random):
    weights = np.ones(ROWS)
    given, answers, _ = coarse(random)
    assert is_worth_it(answers, given, weights, 0.3)
    assert not is_worth_it(answers, given, weights, 1.0)
    for wrong, spread in ((0.0, SPREAD), (0.4, 0.01)):
        given, answers, _ = coarse(random, wrong, spread=spread)
        assert not is_worth_it(answers, given, weights, 0.3)


class Fixed:
    """A candidate that is trained already."""

    def __init__(self, answers):
        self.answers = answers

    def train(self, share):
        if isinstance(self.answers, Exception):
            raise self.answers

    def predict(self):
        return self.answers


def estimate_of(random, lesser=None):
    given, answers, off = coarse(random)
    truth = given - np.where(off[:, None] > 0, given - answers, 0)

    def start(rate):
        return Fixed(truth + 3 * (0.2 - min(rate, 0.2)) + (answers - truth))

    pick = pick_rate(start, given, lesser=lesser and (lambda rate: lesser(given, answers)), seen=0.7)
    return pick, off


def test_a_race_counts_smaller_mistakes_by_its_learning_curve(random):
    plain, off = estimate_of(random)
    curved, _ = estimate_of(
        np.random.default_rng(0), lambda given, answers: Fixed(answers + 2.5 * SPREAD * random.normal(size=given.shape))
    )
    assert plain.estimate < curved.estimate < (off > 0).mean()
    assert curved.interval[0] < curved.estimate < curved.interval[1]
    assert (curved.rate, curved.winner) == (plain.rate, plain.winner)


def test_a_lesser_network_that_diverges_changes_nothing_and_an_error_of_the_callers_is_no_defeat(random):
    plain, _ = estimate_of(np.random.default_rng(0))
    astray, _ = estimate_of(np.random.default_rng(0), lambda given, answers: Fixed(GradsieveError("it has diverged")))
    assert astray.estimate == plain.estimate
    with pytest.raises(InputError, match="mine"):
        estimate_of(random, lambda given, answers: Fixed(InputError("mine")))


@pytest.mark.parametrize(("rows", "has_curve"), [(3000, True), (6000, False)])
def test_only_small_sets_have_a_learning_curve(random, rows, has_curve):
    truth = random.normal(size=(rows, 1))
    off = (random.random((rows, 1)) < 0.4) * random.uniform(-3, 3, (rows, 1))
    answers = truth + SPREAD * random.normal(size=truth.shape)
    electors, trained = electorate(rows, 0), []

    def start(rate, part):
        trained.append(len(part.trained))
        return Fixed(answers[part.voters.numpy()])

    race(start, electors, truth + off, has_curve=True)
    whole = len(electors.parts[0].trained)
    assert (whole // 4 in trained) == has_curve
    assert {each for each in trained if each < whole} == ({whole // 4} if has_curve else set())
    before = len(trained)
    race(start, electors, truth + off)
    assert min(trained[before:]) == whole
