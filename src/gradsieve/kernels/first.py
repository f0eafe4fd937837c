"""The same as ``direct`` for a layer with few input channels, as the first of a network has.

Three taps of three channels would leave the tensor cores idle, so all taps and channels together
are the columns of one product per row.
"""

# Triton comes with the CUDA builds of PyTorch only, and pyright does not see what jit makes of a function.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradsieve.errors import InputError
from gradsieve.kernels import tiles
from gradsieve.kernels.maps import checked_maps, store_arguments
from gradsieve.kernels.tiles import FirstTile


@triton.jit
def first_kernel(
    gradients,
    images,
    stored,
    squares,
    stored_stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDING: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_WEIGHTS: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
    STORE: tl.constexpr,
):
    """One row of the batch and some output channels, all nine taps of all input channels."""
    POSITIONS: tl.constexpr = LINES * COLUMNS
    WEIGHTS: tl.constexpr = 9 * INPUTS
    program = tl.program_id(0)
    row = (program // (OUTPUTS // BLOCK_OUTPUTS)).to(tl.int64)
    output = program % (OUTPUTS // BLOCK_OUTPUTS) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    weight = tl.arange(0, BLOCK_WEIGHTS)  # of one output: [kernel line, tap, input]
    tap = weight // INPUTS
    channel = weight % INPUTS
    map_gradient = gradients + row * (POSITIONS * OUTPUTS)
    image = images + row * (HEIGHT * WIDTH * INPUTS)
    product = tl.zeros((BLOCK_OUTPUTS, BLOCK_WEIGHTS), tl.float32)
    for start in range(0, POSITIONS, BLOCK_POSITIONS):
        position = start + tl.arange(0, BLOCK_POSITIONS)
        wanted = position < POSITIONS
        line = (position // COLUMNS)[:, None] + (tap // 3)[None, :] - PADDING
        column = (position % COLUMNS)[:, None] + (tap % 3)[None, :] - PADDING
        inside = (line >= 0) & (line < HEIGHT) & (column >= 0) & (column < WIDTH)
        seen = tl.load(
            image + (line * WIDTH + column) * INPUTS + channel[None, :],
            mask=inside & wanted[:, None] & (weight < WEIGHTS)[None, :],
            other=0.0,
        )
        gradient_places = map_gradient + position[:, None] * OUTPUTS + output[None, :]
        gradient = tl.load(gradient_places, mask=wanted[:, None], other=0.0)
        product = tl.dot(tl.trans(gradient), seen, product, input_precision="ieee")
    if STORE:
        places = stored + row * stored_stride + output[:, None] * WEIGHTS + weight[None, :]
        tl.store(places, product.to(stored.dtype.element_ty), mask=(weight < WEIGHTS)[None, :])
    tl.store(squares + program, tl.sum(product * product))


def first(
    activations: Tensor, gradient: Tensor, padding: int, store: Tensor | None = None, tile: FirstTile | None = None
) -> Tensor:
    """The squared norm of each row's weight gradient in parts (N, programs); the gradient itself goes to ``store``.

    Input channels are 1 to 8, output channels a multiple of 16.
    """
    maps = checked_maps(activations, gradient, padding)
    inputs, outputs = maps.channels
    if inputs > tiles.MOST_FIRST_INPUTS:
        raise InputError(f"first takes up to {tiles.MOST_FIRST_INPUTS} input channels, but there are {inputs}.")
    tile = tile or tiles.FIRST
    squares = first_parts(*maps, tile)
    first_kernel[(squares.numel(),)](
        maps.gradient,
        maps.activations,
        *store_arguments(maps, store, squares),
        **maps.sizes(padding),
        BLOCK_OUTPUTS=gcd(tile.outputs, outputs),
        BLOCK_WEIGHTS=max(tiles.SMALLEST, triton.next_power_of_2(9 * inputs)),
        BLOCK_POSITIONS=tile.positions,
        STORE=store is not None,
        num_warps=tile.warps,
        num_stages=tiles.stages_on(maps.gradient.device, tile.stages),
    )
    return squares


def first_parts(activations: Tensor, gradient: Tensor, tile: FirstTile | None = None) -> Tensor:
    """Room for the sum of squares of every program: (N, programs of a row)."""
    rows, outputs = gradient.shape[:2]
    programs = outputs // gcd((tile or tiles.FIRST).outputs, outputs)
    return torch.empty(rows, programs, dtype=torch.float32, device=gradient.device)
