"""Two networks that rival for the rows: whose they are, how many are wrong, and when nothing is said."""

import numpy as np
import pytest

from gradsieve.choosing.ballot import hold_vote
from gradsieve.choosing.rivals import divide, explain, majority_first, may_be_bent
from gradsieve.errors import GradsieveError, InputError

ROWS = 2000


@pytest.fixture
def random():
    return np.random.default_rng(0)


def flipped(random, wrong=0.45, noise=0.1, outputs=1):
    """A truth, targets of which some have the other sign, and which these are."""
    truth = random.normal(size=(ROWS, outputs))
    is_wrong = random.random(ROWS) < wrong
    given = truth * np.where(is_wrong, -1, 1)[:, None] + noise * random.normal(size=(ROWS, outputs))
    return truth, given, is_wrong


@pytest.mark.parametrize("outputs", [1, 2])
def test_every_row_finds_its_network(random, outputs):
    truth, given, is_wrong = flipped(random, outputs=outputs)
    found = explain(np.stack([truth, -truth]), given, np.ones(ROWS))
    np.testing.assert_allclose(found.belongs.sum(0), 1)
    np.testing.assert_allclose(found.shares, [1 - is_wrong.mean(), is_wrong.mean(), 0], atol=0.03)
    np.testing.assert_allclose(found.errors, 0.1 * outputs**0.5, rtol=0.2)
    clear = np.linalg.norm(truth, axis=1) > 0.5
    assert ((found.belongs.argmax(0) == is_wrong)[clear]).mean() > 0.99


def test_what_neither_meets_belongs_to_none(random):
    truth, given, _ = flipped(random, wrong=0.3)
    given[:400] = random.uniform(-20, 20, (400, 1))
    found = explain(np.stack([truth, -truth]), given, np.ones(ROWS))
    assert found.belongs[2, :400][np.abs(given[:400, 0]) > 4].min() > 0.99
    assert found.belongs[2, 400:].mean() < 0.2


def test_a_row_of_weight_two_is_two_rows(random):
    truth, given, _ = flipped(random)
    rivals = np.stack([truth, -truth])
    twice = np.arange(ROWS) % 2
    weighted = explain(rivals, given, 1.0 + twice)
    rows = np.repeat(np.arange(ROWS), 1 + twice)
    copied = explain(rivals[:, rows], given[rows], np.ones(len(rows)))
    # Medians and quarters, where the search starts and what bounds it, know no weights: no exact equality.
    np.testing.assert_allclose(weighted.shares, copied.shares, atol=2e-3)
    np.testing.assert_allclose(weighted.errors, copied.errors, rtol=0.02)


@pytest.mark.parametrize(("wrong", "first"), [(0.45, 0), (0.55, 1)])
def test_the_majority_comes_first(random, wrong, first):
    truth, given, _ = flipped(random, wrong)
    assert majority_first(np.stack([truth, -truth]), given) == (first, 1 - first)


def test_many_rows_of_chance_are_no_majority(random):
    truth, given, _ = flipped(random, 0.0)
    given[: int(0.6 * ROWS)] = random.uniform(-3, 3, (int(0.6 * ROWS), 1))
    assert majority_first(np.stack([truth, np.zeros_like(truth)]), given) == (0, 1)


def suspects(rivals, given):
    found = divide(rivals, given, np.ones(ROWS))
    assert found is not None
    np.testing.assert_array_equal(found.majority, rivals[0])
    return found.is_suspect


def test_wrong_rows_are_counted_where_they_follow_a_rule(random):
    truth, given, is_wrong = flipped(random)
    wrong = suspects(np.stack([truth, -truth]), given)
    moved = is_wrong & (np.abs(2 * truth[:, 0]) > 0.3)  # three errors
    assert wrong.mean() == pytest.approx(moved.mean(), abs=0.03)
    assert wrong[~is_wrong].mean() < 0.02


def test_a_row_that_sides_with_the_minority_may_lie_nearer_than_one_that_does_not(random):
    """Swapped numbers that are nearly equal move little, but to where the minority's network expects them."""
    truth, given, is_wrong = flipped(random, noise=0.01)
    moved = is_wrong & (np.abs(2 * truth[:, 0]) > 0.1)  # half of what counts as right otherwise
    assert suspects(np.stack([truth, -truth]), given).mean() == pytest.approx(moved.mean(), abs=0.003)


def test_what_neither_has_learnt_is_nobodys(random):
    truth, given, is_wrong = flipped(random)
    rivals = np.stack([truth, -truth])
    unlearnt = np.arange(ROWS) < 400
    rivals[0, unlearnt] = 3.0
    rivals[1, unlearnt] = given[unlearnt] + 4.0 * np.sign(given[unlearnt] - 3.0)  # a little farther away than the first
    wrong = suspects(rivals, given)
    assert wrong[unlearnt].mean() < 0.5
    assert wrong[~unlearnt].mean() == pytest.approx(is_wrong[~unlearnt].mean(), abs=0.08)


def test_noise_that_was_divided_says_nothing(random):
    signal = random.normal(size=(ROWS, 1))
    given = signal + 1.5 * random.normal(size=(ROWS, 1))
    assert divide(np.stack([signal + 1.2, signal - 1.2]), given, np.ones(ROWS)) is None


def test_rivals_that_agree_say_nothing(random):
    truth, given, _ = flipped(random, 0.0)
    assert divide(np.stack([truth, 0.8 * truth]), given, np.ones(ROWS)) is None


def test_a_second_network_that_meets_nothing_says_nothing(random):
    truth, given, is_wrong = flipped(random, 0.4)
    given[is_wrong] = random.uniform(-4, 4, (is_wrong.sum(), 1))
    assert divide(np.stack([truth, np.zeros_like(truth)]), given, np.ones(ROWS)) is None


def test_a_few_rows_are_no_rivals(random):
    truth, given, _ = flipped(random, 0.04)
    assert divide(np.stack([truth, -truth]), given, np.ones(ROWS)) is None


def last_vote_of(answers, given):
    """The last vote between candidates (rate -> answers)."""
    return hold_vote(1.0, answers, given, None, 0.0, [])


def test_rivals_are_asked_where_much_is_dropped_or_little_is_met(random):
    truth, given, _ = flipped(random, 0.0)
    met, missed = last_vote_of({0.2: truth}, given), last_vote_of({0.2: 0 * truth}, given)
    assert not may_be_bent(met, 0, 0.2)
    assert may_be_bent(met, 0, 0.3)
    assert may_be_bent(missed, 0, 0.0)
    roughly = last_vote_of({0.2: truth + 0.4 * random.normal(size=truth.shape)}, given)
    assert [may_be_bent(roughly, 0, wrong) for wrong in (0.1, 0.2)] == [False, True]


def test_rivals_are_asked_where_none_is_dropped_though_rows_lie_far_closer_to_one_that_drops_some(random):
    truth, given, _ = flipped(random, 0.0)
    between = truth + 0.3 * np.sign(random.normal(size=truth.shape))
    assert may_be_bent(last_vote_of({0.0: between, 0.2: truth}, given), 0, 0.1)
    assert not may_be_bent(last_vote_of({0.1: between, 0.2: truth}, given), 0, 0.1)  # it knows that some are wrong
    assert not may_be_bent(last_vote_of({0.0: 1.05 * truth, 0.2: truth}, given), 0, 0.1)


class Fixed:
    """A candidate that is trained already."""

    def __init__(self, answers):
        self.answers = answers

    def train(self, share):
        pass

    def predict(self):
        return self.answers


def race_of(random, rivals):
    from gradsieve.choosing.rates import pick_rate

    truth, given, _ = flipped(random)
    return pick_rate(lambda rate: Fixed(0.1 * truth), given, rivals=rivals and (lambda: rivals(truth)))


def test_a_pick_tells_how_many_follow_another_rule_and_drops_as_before(random):
    alone = race_of(np.random.default_rng(0), None)
    pick = race_of(np.random.default_rng(0), lambda truth: np.stack([truth, -truth]))
    assert alone.estimate < 0.1
    assert (pick.rate, pick.winner) == (alone.rate, alone.winner) == (0.0, 0.0)
    assert pick.estimate == pytest.approx(0.37, abs=0.05)
    assert pick.interval[0] < pick.estimate < pick.interval[1]
    assert "follow another rule" in pick.warning
    assert "an input is missing" in pick.warning


def test_rivals_that_diverge_are_not_heard(random):
    def diverge(truth):
        raise GradsieveError("The loss became NaN")

    assert race_of(np.random.default_rng(0), diverge).to_json() == race_of(np.random.default_rng(0), None).to_json()


def test_an_error_of_the_callers_is_no_defeat(random):
    def refuse(truth):
        raise InputError("module has no trainable parameter.")

    with pytest.raises(InputError, match="no trainable parameter"):
        race_of(random, refuse)


@pytest.mark.parametrize(("noise", "is_heard"), [(0.02, True), (0.35, False)])
def test_rivals_that_meet_rows_less_closely_than_the_winner_are_not_heard(random, noise, is_heard):
    from gradsieve.choosing.rates import pick_rate

    truth, given, _ = flipped(random, 0.4)
    learnt = np.stack([truth, -truth]) + noise * random.normal(size=(2, ROWS, 1))
    asked = []

    def pick(rivals):
        return pick_rate(lambda rate: Fixed(truth if rate else 0.1 * truth), given, rivals=rivals)

    heard = pick(lambda: asked.append(None) or learnt)
    assert len(asked) == 1
    assert divide(learnt, given, np.ones(ROWS)) is not None
    assert (heard.estimate != pick(None).estimate) == is_heard


@pytest.mark.parametrize(("astray", "is_followed"), [(0.1, True), (0.3, False)])
def test_a_winner_that_the_majoritys_rival_contradicts_is_not_followed(random, astray, is_followed):
    """A network may learn the honest rows of some inputs and the wrong ones of others."""
    from gradsieve.choosing.rates import pick_rate

    truth, given, _ = flipped(random, 0.4)
    said = np.where(random.random((ROWS, 1)) < astray, -truth, truth)
    pick = pick_rate(lambda rate: Fixed(said if rate else 0 * truth), given, rivals=lambda: np.stack([truth, -truth]))
    assert pick.winner > 0
    assert (pick.rate > 0) == is_followed
    assert ("contradict each other" in pick.warning) != is_followed
    assert pick.estimate == pytest.approx(0.36, abs=0.04)
