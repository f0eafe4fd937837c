"""Batches: all rows once, exactly the same from any place of an epoch on."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from gradsieve.errors import InputError
from gradsieve.streams.encoder import Encoder
from gradsieve.streams.feed import BlockFeed, Place
from gradsieve.streams.survey import survey
from gradsieve.tables.frame import Roles
from gradsieve.tables.reading import read_frame
from gradsieve.tables.shards import open_shards

ROWS = 3000
INPUTS = ["a", "b", "c", "town"]


def make_feed(folder, bad_rows="stop", notes=None):
    table = open_shards(folder)
    known = survey(table, Roles(["y"], INPUTS, []), None, 0, bad_rows, lambda text: None)
    note = (lambda text: None) if notes is None else notes.append
    encoder = Encoder(known.encoding, known.targets, known.real_valued, True, bad_rows, note)
    return BlockFeed(table, encoder, 0, torch.device("cpu"))


def drawn(feed, epoch, size, place=Place()):  # noqa: B008
    return list(feed.batches(epoch, size, place))


@pytest.mark.parametrize("size", [7, 64, 700])
def test_an_epoch_visits_every_row_once_and_goes_on_from_any_place(shards, small_windows, size):
    small_windows(400)
    feed = make_feed(shards)
    whole = drawn(feed, 1, size)
    rows = torch.cat([batch.rows for batch, _ in whole])
    assert len(rows) == ROWS // size * size
    assert len(rows.unique()) == len(rows)
    for stop in range(0, len(whole), max(1, len(whole) // 9)):
        rest = drawn(feed, 1, size, whole[stop][1])
        assert len(rest) == len(whole) - stop - 1
        for (batch, place), (expected, its_place) in zip(rest, whole[stop + 1 :], strict=True):
            assert place == its_place
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch, expected, strict=True))
    assert not torch.equal(rows, torch.cat([batch.rows for batch, _ in drawn(feed, 2, size)]))


def test_a_batch_holds_what_the_table_has(shards, small_windows):
    small_windows(400)
    feed, table = make_feed(shards), read_frame(shards)
    expected = feed.encoder.part(table)
    assert_array_equal(expected.rows, np.arange(ROWS))
    for batch, _ in drawn(feed, 1, 100):
        assert_array_equal(batch.inputs, expected.inputs[batch.rows])
        assert_array_equal(batch.targets, expected.targets[batch.rows])


def test_neighbours_are_parted(shards, small_windows):
    """A table sorted by its target is mixed as far as windows reach."""
    small_windows(1000)
    batches = drawn(make_feed(shards), 1, 100)
    spans = [float(batch.rows.double().std()) for batch, _ in batches]
    assert np.mean(spans) > 0.8 * np.arange(ROWS).std()


@pytest.fixture
def faulty(tmp_path, columns, write_shards):
    """Six bad rows: an infinite input, and an infinite target; and two without any target."""
    table = columns()
    for row in (5, 700, 1500, 2999):
        table["a"][row] = np.inf
    table["y"][[9, 2222]] = -np.inf
    table["y"][[10, 11]] = np.nan
    return write_shards(tmp_path / "faulty", table)


def test_bad_rows_stop_the_stream_with_their_place(faulty):
    with pytest.raises(InputError, match=r"part-\d\.parquet, row \d+, column [ay]: '?-?inf'? is not"):
        drawn(make_feed(faulty), 1, 100)


def test_bad_rows_are_skipped_counted_and_named(faulty, small_windows):
    small_windows(400)
    notes = []
    feed = make_feed(faulty, "skip", notes)
    whole = drawn(feed, 1, 64)
    assert feed.bad == 6
    rows = torch.cat([batch.rows for batch, _ in whole])
    assert len(rows) == (ROWS - 8) // 64 * 64
    assert not set(rows.tolist()) & {5, 700, 1500, 2999, 9, 2222, 10, 11}
    assert all(bool(batch.inputs.isfinite().all() and batch.targets.isfinite().all()) for batch, _ in whole)
    places = [note for note in notes if "part-0.parquet, row 6, column a: 'inf' is not a finite number" in note]
    assert places
    for stop in (3, 20, 40):
        rest = drawn(feed, 1, 64, whole[stop][1])
        assert torch.equal(torch.cat([batch.rows for batch, _ in rest]), rows[(stop + 1) * 64 :])
        assert feed.bad == 6


def test_bad_rows_are_counted_from_the_end_of_a_window_on(faulty, small_windows):
    """A batch may take the last rows of a window: then the place behind it is the beginning of the next one."""
    small_windows(400)
    feed = make_feed(faulty, "skip")
    ends = [place for _, place in drawn(feed, 1, 1) if not place.done]
    assert len(ends) == len(feed.windows(1))
    for place in ends:
        feed.bad = 0
        drawn(feed, 1, 1, place)
        assert feed.bad == 6


def test_words_in_a_column_of_numbers_are_bad_rows(tmp_path, small_windows, columns, write_shards):
    small_windows(400)
    table = columns()
    table["a"] = [str(value) for value in table["a"]]
    table["a"][42] = "many"
    folder = write_shards(tmp_path / "words", table)
    feed = make_feed(folder, "skip")
    seen = torch.cat([batch.rows for batch, _ in drawn(feed, 1, 1)])
    assert sorted(seen.tolist()) == [row for row in range(ROWS) if row != 42]
    assert feed.bad == 1
    with pytest.raises(InputError, match=r"part-0\.parquet, row 43, column a: 'many' is not a finite number"):
        drawn(make_feed(folder, "stop"), 1, 100)
