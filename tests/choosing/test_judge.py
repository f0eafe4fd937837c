"""The tie-breaker: used where a vote is close, and only while a majority is right."""

import numpy as np
import pytest

from gradsieve.choosing.judge import agree, is_majority_right, judge, median_residuals, nearest

ROWS = 1000
ONES = np.ones(ROWS)


def rows(share, seed=0):
    """A truth, targets of which a share follows a lie, and what least squares makes of both."""
    random = np.random.default_rng(seed)
    truth, lie = 2 * random.normal(size=(2, ROWS, 1))
    is_wrong = (np.arange(ROWS) < share * ROWS)[:, None]
    given = np.where(is_wrong, lie, truth) + 0.1 * random.normal(size=(ROWS, 1))
    return truth, lie, given, (1 - share) * truth + share * lie


def verdict(answers, given, **options):
    return judge(np.stack(answers), given, ONES, **{"has_plain": True, "has_majority": True, **options})


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45, 0.49])
def test_candidates_that_follow_the_majority_win(share):
    """At 0.49 the vote alone is a tie: 510 rows against 490."""
    truth, _, given, plain = rows(share)
    found = verdict([plain, 0.5 * (plain + truth), truth], given)
    assert found.best == 2
    assert (0 in found.tied) == (share > 0.4)


def test_nothing_is_dropped_where_no_majority_is_sure():
    truth, _, given, plain = rows(0.49)
    assert verdict([plain, 0.9 * truth, truth], given, has_majority=False).best == 0


def test_nor_where_like_candidates_say_unlike_things():
    truth, lie, given, plain = rows(0.49)
    assert verdict([plain, truth, lie], given).best == 0


def test_a_clear_vote_needs_no_tie_breaker():
    """On clean rows a network that gives up the hard tenth has the smaller median residual, and loses."""
    random = np.random.default_rng(0)
    truth = random.normal(size=(ROWS, 1))
    hard = (np.arange(ROWS) < 100)[:, None]
    plain = truth + 0.1 * random.normal(size=(ROWS, 1))
    trimmed = np.where(hard, 0.0, truth + 0.05 * random.normal(size=(ROWS, 1)))
    residuals = median_residuals(np.stack([plain, trimmed]), truth, ONES)
    assert residuals[1] < 0.8 * residuals[0]
    assert verdict([plain, trimmed], truth).best == 0


def test_the_smaller_of_rates_that_are_alike():
    truth, _, given, plain = rows(0.3)
    noise = 0.001 * np.random.default_rng(1).normal(size=(2, ROWS, 1))
    assert verdict([plain, truth + noise[0], truth + noise[1]], given).best == 1


def test_median_residuals_know_weights():
    given = np.arange(5.0)[:, None]
    answers = np.zeros((1, 5, 1))
    assert median_residuals(answers, given, np.ones(5)) == 2
    assert median_residuals(answers, given, np.array([1.0, 1, 1, 1, 5])) == 4


@pytest.mark.parametrize(("share", "expected"), [(0.0, True), (0.3, True), (0.42, True), (0.55, False), (0.6, False)])
def test_a_majority_with_something_to_spare(share, expected):
    truth, _, given, _ = rows(share)
    assert is_majority_right(truth[None], given, ONES) == expected


def test_rate_0_is_left_for_half_a_standard_error_and_more():
    """Of 1000 labels the second gets 6 more than the first among 56 that they differ about, then 2 more among 52."""
    labels = np.zeros(ROWS, dtype=np.int64)

    def sure_of(wrong):
        return np.eye(2)[np.isin(np.arange(ROWS), wrong).astype(int)]

    other = sure_of(range(500, 525))
    assert verdict([sure_of(range(31)), other], labels).best == 1
    assert verdict([sure_of(range(27)), other], labels).best == 0


@pytest.mark.parametrize(("shared", "best"), [(10.0, 0), (0.0, 1)])
def test_rate_0_need_not_be_clearly_behind_what_it_contradicts(shared, best):
    """A lead of little more than a standard error: 520 of 1000 rows are nearer to the second candidate, by a little."""
    random = np.random.default_rng(0)
    plain, step = shared * random.normal(size=(ROWS, 1)), random.choice([-1.0, 1.0], size=(ROWS, 1))
    given = plain + np.where(np.arange(ROWS) < 520, 0.52, 0.48)[:, None] * step
    assert verdict([plain, plain + step], given, must_be_sure=True).best == best
    assert verdict([plain, plain + step], given).best == 1


@pytest.mark.parametrize(("nearer", "best"), [(536, 0), (545, 1)])
def test_in_the_end_real_valued_targets_take_two_and_a_half_standard_errors_to_leave_rate_0(nearer, best):
    """536 of 1000 are 2.3 standard errors, 545 are 2.9."""
    random = np.random.default_rng(0)
    plain, step = 10 * random.normal(size=(ROWS, 1)), random.choice([-1.0, 1.0], size=(ROWS, 1))
    given = plain + np.where(np.arange(ROWS) < nearer, 0.52, 0.48)[:, None] * step
    assert verdict([plain, plain + step], given, must_be_sure=True).best == best


def test_in_the_end_classes_take_two_standard_errors_to_leave_rate_0():
    """Of 166 labels that the two differ about, the second gets 34 more: 2.6 standard errors."""
    labels = np.zeros(ROWS, dtype=np.int64)

    def sure_of(wrong):
        return np.eye(2)[np.isin(np.arange(ROWS), wrong).astype(int)]

    assert verdict([sure_of(range(100)), sure_of(range(500, 566))], labels, must_be_sure=True).best == 1


def test_classes_do_not_go_by_confidence_alone():
    """A network that is always sure, and wrong about a third, beats a hesitant one by probabilities only."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=ROWS)
    hesitant = np.full((ROWS, 3), 0.3) + 0.1 * np.eye(3)[labels]
    guess = np.where(random.random(ROWS) < 0.33, (labels + 1) % 3, labels)
    found = verdict([hesitant, np.eye(3)[guess]], labels)
    assert found.result.ranking[0] == 1
    assert found.best == 0


def test_one_candidate_is_the_best():
    assert verdict([np.zeros((ROWS, 1))], np.zeros((ROWS, 1))).best == 0


def test_predictions_agree_that_differ_by_less_than_they_vary_or_by_next_to_nothing():
    says = np.random.default_rng(0).normal(size=(500, 2))
    assert agree(says, 0.7 * says)
    assert agree(says, says + 0.3)
    assert not agree(says, -says)
    assert not agree(says, -says, within=0.35)
    hardly = 0.02 * says  # of networks that have hardly learnt anything
    assert not agree(hardly, -hardly + 0.1)
    assert agree(hardly, -hardly + 0.1, within=0.35)


@pytest.mark.parametrize(("closer", "best"), [(0.75, 0), (0.6, 1)])
def test_rate_0_is_left_for_a_residual_that_is_a_third_smaller(closer, best):
    """A quarter is what giving up a few large amounts brings, though none of them is wrong."""
    assert nearest(np.array([1.0, closer]), 0, (0, 1), has_plain=True) == best
