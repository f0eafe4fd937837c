"""Batches: whole ones, in the order asked for, the same bits from the device's memory or streamed."""

import pytest
import torch

from gradsieve.data.dataset import Rows
from gradsieve.training.feed import Feed, as_float, epoch_order
from gradsieve.training.loop import Trainer, reproducible, start
from gradsieve.training.progress import Progress
from gradsieve.training.setting import prepare

CPU = torch.device("cpu")


def rows_of(count):
    inputs = torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    return Rows(inputs, torch.arange(count))


def bytes_of(count):
    return Rows(
        torch.randint(256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(0)).byte(), torch.arange(count)
    )


@pytest.mark.parametrize("first", [0, 2, 6, 7])
@pytest.mark.parametrize("data", [rows_of(50), bytes_of(50)], ids=["float", "bytes"])
def test_streamed_batches_equal_resident_ones_bit_for_bit(data, first):
    order = epoch_order(0, 1, torch.arange(50))
    feeds = [list(Feed(data, CPU, resident=resident).batches(order, 7, first)) for resident in (True, False)]
    assert len(feeds[0]) == len(feeds[1]) == 7 - first
    for one, other in zip(*feeds, strict=True):
        assert all(a.equal(b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("resident", [True, False])
def test_a_batch_holds_the_rows_that_it_names(resident):
    data = bytes_of(20)
    for batch in Feed(data, CPU, resident).batches(torch.arange(20).flip(0), 6):
        assert batch.inputs.equal(data.inputs[batch.rows].float() / 255)
        assert batch.targets.equal(data.targets[batch.rows])


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    ("rows", "batch_size", "sizes"),
    [(10, 3, [3, 3, 3]), (9, 3, [3, 3, 3]), (3, 3, [3]), (2, 3, [2]), (1, 128, [1]), (5, 1, [1] * 5)],
)
def test_a_partial_last_batch_is_left_out_and_a_small_set_is_one_batch(rows, batch_size, sizes, resident):
    feed = Feed(rows_of(rows), CPU, resident)
    assert [len(batch.rows) for batch in feed.batches(torch.arange(rows), batch_size)] == sizes
    assert len(feed) == rows


def test_a_stream_that_is_left_early_ends(recwarn):
    batches = Feed(rows_of(50), CPU, resident=False).batches(torch.arange(50), 5)
    next(batches)
    batches.close()


@pytest.mark.parametrize(("kind", "method"), [("digits", "prl-l"), ("faces", "co-prl-l")])
def test_a_streamed_run_ends_with_the_same_weights(kind, method, request):
    run = request.getfixturevalue(kind)(method)
    weights = []
    for resident in (True, False):
        setting = prepare(run)
        trainer = Trainer(setting, start(setting), None, Progress(), None, save_every=60)
        trainer.feed = Feed(setting.data.train, setting.device, resident=resident)
        with reproducible(run.seed, setting.device):
            trainer.train()
        weights.append(trainer.state.weights())
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_bytes_become_shares_and_floats_stay():
    assert as_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    floats = torch.tensor([-3.5, 300.0])
    assert as_float(floats).equal(floats)
