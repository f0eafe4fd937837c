"""The order in which an epoch visits rows that cannot all be in memory: a function of seed and epoch.

Groups are shuffled. Slices of several groups make a window of rows, which is shuffled as a whole. So neighbours in a
file are mixed with rows from far away, and no group is decoded twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradsieve import seeds
from gradsieve.tables.shards import SLICE, Group, Slice

LANES = 8  # the least number of groups from which a window takes rows, while there are so many
WINDOW_ROWS = LANES * SLICE  # most rows of a window
WINDOW_BYTES = 2**26  # most memory for its inputs
LEAST_ROWS = 2**12  # least rows, whatever they take

Window = list[Slice]


def window_size(inputs: int) -> int:
    """How many rows, with this many float32 ``inputs``, are shuffled together."""
    return max(LEAST_ROWS, min(WINDOW_ROWS, WINDOW_BYTES // (4 * max(1, inputs))))


def epoch_groups(groups: Sequence[Group], seed: int, epoch: int) -> list[Group]:
    """The groups in the order of an epoch."""
    order = torch.randperm(len(groups), generator=seeds.generator(seed, "groups", epoch)).tolist()
    return [groups[number] for number in order]


def windows(groups: Sequence[Group], rows: int) -> Iterator[Window]:
    """Windows of about ``rows`` rows, made of slices from several groups at a time."""
    most = max(1, rows // LANES)
    waiting = list(groups)[::-1]
    begun: list[tuple[Group, int]] = []  # groups that were read in part, and how many rows of them
    while begun or waiting:
        window, going_on, taken = [], [], 0
        while (begun or waiting) and taken < rows:
            group, start = begun.pop(0) if begun else (waiting.pop(), 0)
            part = Slice(group, start, min(most, group.rows - start))
            window.append(part)
            taken += part.rows
            if start + part.rows < group.rows:
                going_on.append((group, start + part.rows))
        begun += going_on
        yield window


def window_order(rows: int, seed: int, epoch: int, number: int) -> Tensor:
    """The order of the rows of a window."""
    stream = (seed, "window", epoch, 0, number)  # 0: once a rank; kept so that fits from then resume to the same bits
    return torch.randperm(rows, generator=seeds.generator(*stream))
