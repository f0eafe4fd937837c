"""Batches: whole ones, in the order asked for, the same bits from the device's memory or streamed."""

import threading

import pytest
import torch
import torch.nn.functional as F

from gradsieve.data.dataset import Rows
from gradsieve.engine.captured import WARM_STEPS
from gradsieve.training.engines import CapturedEngine
from gradsieve.training.feed import BORDER, Feed, as_float, crop_and_flip, draw, epoch_order
from gradsieve.training.progress import Progress
from gradsieve.training.repeatable import reproducible
from gradsieve.training.run import make_run
from gradsieve.training.setting import prepare
from gradsieve.training.trainer import Trainer, start

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


def test_a_stream_that_is_left_early_ends():
    feed, threads = Feed(rows_of(50), CPU, resident=False), threading.active_count()
    batches = feed.batches(torch.arange(50), 5)
    next(batches)
    assert threading.active_count() == threads + 1
    batches.close()
    assert threading.active_count() == threads
    assert next(batches, None) is None
    assert len(list(feed.batches(torch.arange(50), 5))) == 10


@pytest.mark.parametrize(
    ("kind", "method", "augment"),
    [("digits", "prl-l", "none"), ("faces", "co-prl-l", "none"), ("faces", "prl-l", "crop-flip")],
)
def test_a_streamed_run_ends_with_the_same_weights(kind, method, augment, request):
    run = request.getfixturevalue(kind)(method, augment=augment)
    weights = []
    for resident in (True, False):
        setting = prepare(run)
        trainer = Trainer(setting, start(setting), None, Progress(), None, save_every=60)
        trainer.engine.feed = Feed(setting.data.train, setting.device, resident, setting.run.augment)
        with reproducible(run.seed, setting.device):
            trainer.train()
        weights.append(trainer.state.weights())
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_bytes_become_shares_and_floats_stay():
    assert as_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    floats = torch.tensor([-3.5, 300.0])
    assert as_float(floats).equal(floats)


def naive_crop_and_flip(image, top, left, mirrored):
    padded = F.pad(image.float(), [BORDER] * 4)
    height, width = image.shape[1:]
    part = padded[:, top : top + height, left : left + width]
    return part.flip(2) if mirrored else part


def test_a_crop_is_the_image_moved_in_zeros_and_perhaps_mirrored():
    torch.manual_seed(0)
    images = torch.randint(1, 256, (40, 3, 7, 6), dtype=torch.uint8)
    moved = crop_and_flip(images)
    assert moved.shape == images.shape
    assert moved.dtype == torch.uint8
    places = []
    for image, found in zip(images, moved, strict=True):
        ways = [
            (top, left, mirrored)
            for top in range(2 * BORDER + 1)
            for left in range(2 * BORDER + 1)
            for mirrored in (False, True)
            if torch.equal(naive_crop_and_flip(image, top, left, mirrored), found.float())
        ]
        assert ways
        places.append(ways[0])
    assert len({top for top, _, _ in places}) > 4
    assert len({left for _, left, _ in places}) > 4
    assert 10 < sum(mirrored for _, _, mirrored in places) < 30


def test_the_same_random_numbers_give_the_same_crops():
    images = torch.rand(5, 3, 8, 8)
    torch.manual_seed(3)
    first = crop_and_flip(images)
    torch.manual_seed(3)
    assert torch.equal(crop_and_flip(images), first)


def test_a_step_that_is_tried_at_the_end_of_an_epoch_finds_rows():
    """A capture tries its step a few times; of a set of one batch, all tries but the first lie beyond it."""
    setting = prepare(make_run("digits", "prl-l", epochs=1, batch_size=1000, device="cpu"))
    engine = CapturedEngine(setting, start(setting), Feed(setting.data.train, setting.device))
    for _ in range(WARM_STEPS):
        batch = draw(engine.order, engine.place, engine.feed.inputs, engine.feed.targets, 1000, "none")
        assert len(batch.rows) == 1000
        assert int(batch.rows.max()) < len(engine.feed)
