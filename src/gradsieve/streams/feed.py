"""Batches of a table that is read window by window, from any place in an epoch on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradsieve.streams.encoder import Encoded, Encoder, joined
from gradsieve.streams.order import Window, epoch_groups, window_order, window_size, windows
from gradsieve.tables.shard_frames import read_slice
from gradsieve.tables.shard_reader import Reader
from gradsieve.tables.shards import Shards
from gradsieve.training.feed import Batch


class Place(NamedTuple):
    """How far an epoch has come: a window, its rows that are done, and the bad rows of all windows before it."""

    window: int = 0
    done: int = 0
    bad: int = 0


@dataclass(frozen=True)
class Stretch:
    """A window's rows, of which the first ``done`` in ``order`` have been in a batch."""

    window: int
    part: Encoded
    order: Tensor
    done: int
    bad_before: int

    @property
    def left(self) -> int:
        return len(self.order) - self.done


class BlockFeed:
    """A table in files, ready to be drawn in the order of any epoch."""

    def __init__(self, shards: Shards, encoder: Encoder, seed: int, device: torch.device) -> None:
        self.shards, self.encoder, self.seed, self.device = shards, encoder, seed, device
        self.waited = 0.0  # seconds spent waiting for rows to be read
        self.bad = 0  # rows that the last whole epoch left out

    def __len__(self) -> int:
        return len(self.shards)

    def windows(self, epoch: int) -> list[Window]:
        """The windows of an epoch in their order."""
        groups = epoch_groups(self.shards.groups, self.seed, epoch)
        return list(windows(groups, window_size(self.encoder.encoding.size)))

    def batches(self, epoch: int, size: int, place: Place) -> Iterator[tuple[Batch, Place]]:
        """Batches of ``size`` rows from ``place`` on, each with the place after it; the last few rows are left over."""
        waiting: deque[Stretch] = deque()
        bad = place.bad
        for number, part in self.read_ahead(self.windows(epoch), place.window):
            order = window_order(len(part.rows), self.seed, epoch, number)
            waiting.append(Stretch(number, part, order, place.done if number == place.window else 0, bad))
            bad += part.bad
            while sum(stretch.left for stretch in waiting) >= size:
                batch = draw(waiting, size)
                after = waiting[0] if waiting else None
                yield (
                    Batch(*(each.to(self.device) for each in batch)),
                    Place(after.window, after.done, after.bad_before) if after else Place(number + 1, 0, bad),
                )
        self.bad = bad

    def read_ahead(self, plan: list[Window], first: int) -> Iterator[tuple[int, Encoded]]:
        """The windows from ``first`` on; a thread reads the next one while this one is in use."""
        reader = Reader(self.shards, self.encoder.names)

        def read(window: Window) -> Encoded:
            return joined([self.encoder.part(read_slice(reader, part)) for part in window])

        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(read, plan[first]) if first < len(plan) else None
            for number in range(first, len(plan)):
                assert ahead is not None
                asked_at = time.monotonic()
                part = ahead.result()
                self.waited += time.monotonic() - asked_at
                ahead = thread.submit(read, plan[number + 1]) if number + 1 < len(plan) else None
                yield number, part


def draw(waiting: deque[Stretch], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Take the first ``size`` rows off the queue."""
    drawn: list[Encoded] = []
    while size:
        stretch = waiting.popleft()
        count = min(size, stretch.left)
        rows = stretch.order[stretch.done : stretch.done + count]
        drawn.append(Encoded(stretch.part.rows[rows], stretch.part.inputs[rows], stretch.part.targets[rows]))
        size -= count
        if count < stretch.left:
            waiting.appendleft(replace(stretch, done=stretch.done + count))
    return drawn[0][:3] if len(drawn) == 1 else joined(drawn)[:3]
