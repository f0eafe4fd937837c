"""The cost of many ranks on paper: the formulas against counting by hand, and how they grow."""

import pytest

from gradsieve.experiments.cost_model import Cluster, Job, all_gather_bytes, all_reduce_bytes, cost, selection_bytes

JOB = Job(parameters=1_000_000, rows_a_rank=256, rows=50_000, seconds_a_row=1e-3)


def test_one_rank_moves_nothing():
    alone = cost(JOB, Cluster(1, 1e9, 1e-5))
    assert (alone.gradient_bytes, alone.selection_bytes, alone.ledger_bytes) == (0, 0, 0)
    assert alone.step_seconds == alone.compute_seconds == pytest.approx(0.256)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bytes_are_those_of_a_ring_counted_by_hand(ranks):
    """In a ring everybody sends one of as many pieces in each turn: once around to add up, once around to tell."""
    content, piece = 1200.0, 1200.0 / ranks
    assert all_reduce_bytes(content, ranks) == pytest.approx(sum(piece for _ in range(2 * (ranks - 1))))
    assert all_gather_bytes(content, ranks) == pytest.approx(sum(piece for _ in range(ranks - 1)))


def test_selection_moves_what_a_row_needs_until_histograms_move_less():
    assert selection_bytes(1000, 4) == 0.75 * 1000 * 8
    largest = max(selection_bytes(rows, 64) for rows in (1_000, 100_000, 131_072, 131_073, 10_000_000, 10**9))
    assert largest == selection_bytes(131_072, 64)
    assert selection_bytes(10**9, 64) == selection_bytes(10**7, 64)


def test_more_ranks_never_make_a_step_shorter_at_the_same_rows_a_rank():
    costs = [cost(JOB, Cluster(ranks, 1e9, 1e-5)) for ranks in (1, 2, 8, 64, 1024)]
    assert [each.step_seconds for each in costs] == sorted(each.step_seconds for each in costs)


def test_the_ledger_is_what_a_data_set_of_a_billion_rows_weighs():
    heavy = cost(Job(10**8, 256, 10**9, 1e-3), Cluster(1024, 50e9, 1e-5))
    assert heavy.held_bytes == 40e9
    assert heavy.ledger_bytes == pytest.approx(32e9, rel=1e-2)
