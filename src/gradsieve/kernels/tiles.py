"""The tile sizes of all kernels: how much a program processes at a time. This is the one place to tune.

The sizes are those that were fastest on an H200, for cnn9 with 128 rows in bfloat16;
``python benchmarks/kernels.py --sweep`` tries others. All are powers of two, and if a layer has
fewer channels, its tiles shrink with them.
"""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import NamedTuple

import torch

SMALLEST = 16  # the least that tensor cores multiply along any side
MOST_FIRST_INPUTS = 8  # input channels that ``first`` takes: 9 x 8 columns fill more than half of a tile of 128
MOST_SMALL_POSITIONS = 64  # positions that ``gram_small`` takes: one program holds both Gram matrices


class ProductTile(NamedTuple):
    """A tile of a row's weight gradient (output x input channels), summed over some positions at a time."""

    outputs: int
    inputs: int
    positions: int
    warps: int
    stages: int


class FirstTile(NamedTuple):
    """The same for few input channels, where all taps and channels are the columns of one product."""

    outputs: int
    positions: int
    warps: int
    stages: int


class GramTile(NamedTuple):
    """A tile of a row's Gram matrix (positions x positions), summed over some channels at a time."""

    positions: int
    channels: int
    warps: int
    stages: int


class SmallTile(NamedTuple):
    """A whole Gram matrix of a small map, summed over some channels at a time."""

    channels: int
    warps: int
    stages: int


class KeptTile(NamedTuple):
    """Columns of the stored rows, some rows at a time."""

    columns: int
    rows: int
    warps: int


# By the width of the map: a box of bulk copies takes whole lines of it.
BULK = {32: ProductTile(128, 128, 32, warps=8, stages=4)}
BULK_OTHER = ProductTile(128, 128, 64, warps=8, stages=3)
POINTERS = ProductTile(128, 64, 64, warps=8, stages=3)
FIRST = FirstTile(128, 64, warps=8, stages=4)
SHIFTED_GRAM = GramTile(128, 64, warps=8, stages=3)
WEIGHTED_GRAM = GramTile(128, 64, warps=8, stages=3)
SMALL = SmallTile(64, warps=4, stages=4)
KEPT = KeptTile(128, 64, warps=4)


def fitted(tile: ProductTile, outputs: int, inputs: int) -> ProductTile:
    """``tile`` shrunk to sizes that divide the channels, with the warps reduced in proportion, but not below 4."""
    smaller = tile._replace(outputs=gcd(tile.outputs, outputs), inputs=gcd(tile.inputs, inputs))
    warps = tile.warps * smaller.outputs * smaller.inputs // (tile.outputs * tile.inputs)
    return smaller._replace(warps=max(warps, min(4, tile.warps)))


@cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Whether ``device`` is of the kind that the tiles were measured on: bulk copies, 227 KiB a program.

    These are the generations of the H100 and the B200. The interpreter, which runs on the CPU, counts too.
    """
    if device.type == "cpu":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] in (9, 10)


def stages_on(device: torch.device, stages: int) -> int:
    """``stages``, but at most two on other GPUs: with two, every tile above fits into the smallest's 99 KiB."""
    return stages if has_large_shared_memory(device) else min(2, stages)
