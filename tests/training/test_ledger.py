"""The ledger: exactly what was judged and dropped, and which rows look wrong."""

import pytest
import torch

from gradsieve.counts import keep_count
from gradsieve.training.ledger import Ledger
from gradsieve.training.loop import train
from gradsieve.training.setting import prepare

STEPS, BATCH, ROWS = 22, 64, 1437  # of the digits in batches of 64; 29 rows of each epoch stay over


@pytest.mark.parametrize(("method", "networks"), [("prl-l", 1), ("co-teaching", 2), ("spl", 1)])
def test_judgements_and_drops_add_up_to_what_the_schedule_says(digits, method, networks):
    run = digits(method, epochs=3, ramp=3)
    ledger = train(run).ledger
    dropped = sum(BATCH - keep_count(rate, BATCH) for rate in prepare(run).rates)
    assert ledger.judged.sum() == networks * 3 * STEPS * BATCH
    assert ledger.dropped.sum() == networks * STEPS * dropped
    assert len(ledger.judged) == ROWS
    assert (ledger.judged <= networks * 3).all()
    assert (ledger.dropped <= ledger.judged).all()


def test_plain_training_judges_every_row_and_drops_none(digits):
    ledger = train(digits("standard")).ledger
    assert ledger.judged.sum() == 2 * STEPS * BATCH
    assert ledger.dropped.sum() == 0
    assert ledger.score_sum.abs().sum() == 0


@pytest.mark.parametrize(
    ("method", "options"), [("prl-l", {}), ("prl-g", {}), ("co-prl-l", {}), ("spl", {}), ("spl", {"level": "data"})]
)
def test_corrupted_rows_score_higher_and_are_dropped_more_often(digits, method, options):
    run = digits(method, method_options=options, epochs=12, ramp=4, model_options={"hidden": [64]})
    ledger, wrong = train(run).ledger, prepare(run).is_corrupted
    assert ledger.mean_score[wrong].mean() > 1.5 * ledger.mean_score[~wrong].mean()
    assert ledger.drop_share[wrong].mean() > 2 * ledger.drop_share[~wrong].mean()


def test_a_batch_is_entered_row_by_row():
    ledger = Ledger.empty(5)
    ledger.record(torch.tensor([3, 0, 4]), torch.tensor([1.0, 2.0, 4.0]), kept=torch.tensor([0, 1]))
    ledger.record(torch.tensor([3, 1]), torch.tensor([3.0, 5.0]), kept=torch.tensor([1]))
    ledger.record_absent(torch.tensor([2]), torch.tensor([7.0]))
    assert ledger.judged.tolist() == [1, 1, 1, 2, 1]
    assert ledger.dropped.tolist() == [0, 0, 1, 1, 1]
    assert ledger.mean_score.tolist() == [2, 5, 7, 2, 4]
    assert ledger.drop_share.tolist() == [0, 0, 1, 0.5, 1]


def test_of_a_row_that_was_never_seen_nothing_is_known():
    """A score of 0 would call it the cleanest of all."""
    ledger = Ledger.empty(2)
    ledger.record(torch.tensor([1]), None, kept=torch.tensor([0]))
    assert ledger.mean_score.isnan().tolist() == [True, True]
    assert ledger.drop_share.isnan().tolist() == [True, False]


def test_a_score_that_is_nan_counts_as_the_worst():
    ledger = Ledger.empty(1)
    ledger.record(torch.tensor([0]), torch.tensor([torch.nan]), kept=torch.tensor([], dtype=torch.int64))
    assert ledger.mean_score.tolist() == [torch.inf]


def test_a_score_beyond_all_numbers_stays_so():
    ledger = Ledger.empty(3)
    ledger.record(torch.arange(3), torch.tensor([1.0, torch.inf, torch.nan]), kept=torch.tensor([0]))
    assert ledger.mean_score.tolist() == [1.0, float("inf"), float("inf")]
