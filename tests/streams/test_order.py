"""The order of an epoch: every row once, a function of seed and epoch, and well mixed."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.streams.order import LANES, epoch_groups, window_order, window_size, windows
from gradsieve.tables.shards import Group, in_file_order


def make_groups(sizes):
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [Group(number // 3, number % 3, rows, firsts[number]) for number, rows in enumerate(sizes)]


def rows_of(parts):
    return [row for part in parts for row in range(part.first, part.first + part.rows)]


layouts = st.lists(st.integers(1, 60), min_size=1, max_size=30).map(make_groups)


@given(layouts, st.integers(1, 200), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_every_row_once(groups, rows, epoch):
    seen = []
    for window in windows(epoch_groups(groups, 7, epoch), rows):
        seen += rows_of(window)
        assert sum(part.rows for part in window) < rows + max(1, rows // LANES)
    assert sorted(seen) == list(range(sum(group.rows for group in groups)))
    assert rows_of(in_file_order(groups, rows)) == sorted(seen)


@given(layouts, st.integers(1, 200))
@settings(max_examples=50, deadline=None)
def test_a_group_is_read_from_its_beginning_on(groups, rows):
    """No row is decoded twice: the slices of a group come in its order."""
    done = {}
    for window in windows(epoch_groups(groups, 7, 1), rows):
        for part in window:
            assert part.start == done.get(part.group, 0)
            done[part.group] = part.start + part.rows


def test_the_order_is_a_function_of_seed_and_epoch():
    groups = make_groups([50] * 40)

    def order(seed, epoch):
        return [rows_of(window) for window in windows(epoch_groups(groups, seed, epoch), 400)]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(1, 1)
    assert order(0, 1) != order(0, 2)
    assert torch.equal(window_order(100, 0, 1, 3), window_order(100, 0, 1, 3))
    for other in [(1, 1, 3), (0, 2, 3), (0, 1, 4)]:
        assert not torch.equal(window_order(100, 0, 1, 3), window_order(100, *other))


def test_a_window_holds_rows_from_many_groups():
    """Large groups are read side by side, small ones by the dozen."""
    large = list(windows(make_groups([1000] * 20), 400))
    assert all(len({part.group for part in window}) >= LANES for window in large[:-20])
    small = list(windows(make_groups([10] * 200), 400))
    assert all(len(window) == 40 for window in small)


def test_wide_rows_have_small_windows():
    assert window_size(20) == 2**19
    assert window_size(1000) * 4000 <= 2**26
    assert window_size(10**7) == 2**12
