"""From scores to a suspicion: the order stays, the flagged rows have a half and more, and nothing leaves [0, 1]."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.audit.flags import rank_targets
from gradsieve.audit.suspicion import ranks, suspicion
from gradsieve.mistakes.kinds import Diagnosis
from gradsieve.mistakes.widths import Widths

SCORES = st.lists(st.floats(0, 1e6) | st.just(float("inf")) | st.just(float("nan")), min_size=1, max_size=30)


@given(SCORES, st.integers(0, 30))
def test_suspicion_keeps_the_order_and_the_bounds(scores, flagged):
    scores = np.array(scores)
    found = suspicion(scores, flagged)
    assert ((found >= 0) & (found <= 1)).all()
    order = np.argsort(ranks(scores))
    known = order[~np.isnan(scores[order])]
    assert (np.diff(found[known]) <= 0).all()
    assert (found[np.isnan(scores)] == 0).all()


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=30, unique=True), st.data())
def test_exactly_the_flagged_rows_have_more_than_a_half(scores, data):
    flagged = data.draw(st.integers(0, len(scores)))
    found = suspicion(np.array(scores), flagged)
    assert (found > 0.5).sum() <= flagged <= (found >= 0.5).sum()


@pytest.mark.parametrize("scores", [[1.0, 3.0, 2.0, 3.0], [np.nan, 0.0, 0.0, 5.0], [np.inf, np.nan, 1.0, np.inf]])
def test_ranks_are_a_stable_order_with_unknown_rows_last(scores):
    naive = sorted(range(4), key=lambda row: (np.isnan(scores[row]), -scores[row] if scores[row] == scores[row] else 0))
    assert np.argsort(ranks(np.array(scores))).tolist() == naive


def test_among_amounts_that_are_surely_right_the_farthest_still_come_first():
    distance = np.array([3.0, 1.0, 2.0, 0.5], dtype=np.float32)
    widths = Widths(np.empty((1, 0)), np.ones((1, 1)), np.empty((0, 1)))
    surely_right = Diagnosis(distance, np.full(4, -500, np.float32), np.zeros(4, np.int8), widths)
    found = rank_targets(np.full(4, 0.1), surely_right)
    assert found.flagged == 0
    assert np.argsort(ranks(found.scores)).tolist() == [0, 2, 1, 3]
