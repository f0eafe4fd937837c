"""Squared norms of the rows' weight gradients without the gradients, from products between positions.

With output gradients g_p and windows w_p at the positions p of one row's map,
|| sum_p g_p w_p^T ||^2 = sum_pq (g_p . g_q)(w_p . w_q): two Gram matrices, multiplied entry by entry.
A window is nine pixels, so the Gram matrix of the windows is the sum over the nine taps t of that of the
shifted pixels, x_{p+t} . x_{q+t}; again no windows are laid out. Cheap where positions are few and channels many.
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
from gradsieve.kernels.maps import checked_maps
from gradsieve.kernels.pixels import load_pixels
from gradsieve.kernels.tiles import GramTile, SmallTile


@triton.jit
def shifted_gram_kernel(
    images, grams, SIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_CHANNELS: tl.constexpr
):
    """A tile of sum_dx x_{p+dx} . x_{q+dx} over the three horizontal taps dx; the matrix is symmetric."""
    POSITIONS: tl.constexpr = SIDE * SIDE
    BLOCKS: tl.constexpr = POSITIONS // BLOCK
    CHANNEL_BLOCKS: tl.constexpr = CHANNELS // BLOCK_CHANNELS
    program = tl.program_id(0)
    row = (program // (BLOCKS * BLOCKS)).to(tl.int64)
    p_block = program // BLOCKS % BLOCKS
    q_block = program % BLOCKS
    if p_block <= q_block:
        p = p_block * BLOCK + tl.arange(0, BLOCK)
        q = q_block * BLOCK + tl.arange(0, BLOCK)
        image = images + row * (POSITIONS * CHANNELS)
        gram = tl.zeros((BLOCK, BLOCK), tl.float32)
        # One loop over taps and channels keeps loads in flight from one tap to the next.
        for step in range(3 * CHANNEL_BLOCKS):
            dx = step // CHANNEL_BLOCKS - 1
            channel = step % CHANNEL_BLOCKS * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
            at_p = load_pixels(image, p // SIDE, p % SIDE + dx, channel, p < POSITIONS, SIDE, SIDE, CHANNELS)
            at_q = load_pixels(image, q // SIDE, q % SIDE + dx, channel, q < POSITIONS, SIDE, SIDE, CHANNELS)
            gram = tl.dot(at_p, tl.trans(at_q), gram, input_precision="ieee")
        places = grams + row * (POSITIONS * POSITIONS) + p[:, None] * POSITIONS + q[None, :]
        tl.store(places, gram.to(grams.dtype.element_ty))


@triton.jit
def weighted_gram_kernel(
    gradients,
    grams,
    products,
    SIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """A tile of (g_p . g_q), made in registers, times the three vertical shifts of the shifted Gram matrix."""
    POSITIONS: tl.constexpr = SIDE * SIDE
    BLOCKS: tl.constexpr = POSITIONS // BLOCK
    program = tl.program_id(0)
    row = (program // (BLOCKS * BLOCKS)).to(tl.int64)
    p_block = program // BLOCKS % BLOCKS
    q_block = program % BLOCKS
    if p_block > q_block:
        tl.store(products + program, 0.0)
    else:
        p = p_block * BLOCK + tl.arange(0, BLOCK)
        q = q_block * BLOCK + tl.arange(0, BLOCK)
        map_gradient = gradients + row * (POSITIONS * CHANNELS)
        gram = tl.zeros((BLOCK, BLOCK), tl.float32)
        for start in range(0, CHANNELS, BLOCK_CHANNELS):
            channel = start + tl.arange(0, BLOCK_CHANNELS)
            at_p = tl.load(map_gradient + p[:, None] * CHANNELS + channel[None, :])
            at_q = tl.load(map_gradient + q[:, None] * CHANNELS + channel[None, :])
            gram = tl.dot(at_p, tl.trans(at_q), gram, input_precision="ieee")
        # A vertical tap moves p and q by a whole line, which keeps the loads aligned.
        DOWN: tl.constexpr = SIDE * (POSITIONS + 1)
        places = grams + row * (POSITIONS * POSITIONS) + p[:, None] * POSITIONS + q[None, :]
        has_above = (p >= SIDE)[:, None] & (q >= SIDE)[None, :]
        has_below = (p < POSITIONS - SIDE)[:, None] & (q < POSITIONS - SIDE)[None, :]
        windows = tl.load(places).to(tl.float32)
        windows += tl.load(places - DOWN, mask=has_above, other=0.0).to(tl.float32)
        windows += tl.load(places + DOWN, mask=has_below, other=0.0).to(tl.float32)
        # Below the diagonal, tiles were never written: an entry above it stands for both.
        times = tl.where(p[:, None] == q[None, :], 1.0, 2.0)
        tl.store(products + program, tl.sum(tl.where(p[:, None] <= q[None, :], gram * windows * times, 0.0)))


@triton.jit
def gram_small_kernel(
    gradients,
    images,
    products,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDING: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):
    """One row of the batch and one line of the kernel: both whole Gram matrices and their product."""
    POSITIONS: tl.constexpr = LINES * COLUMNS
    INPUT_BLOCKS: tl.constexpr = INPUTS // BLOCK_INPUTS
    program = tl.program_id(0)
    row = (program // 3).to(tl.int64)
    position = tl.arange(0, BLOCK)
    wanted = position < POSITIONS
    line = position // COLUMNS + program % 3 - PADDING
    image = images + row * (HEIGHT * WIDTH * INPUTS)
    pixel_gram = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(3 * INPUT_BLOCKS):
        column = position % COLUMNS + step // INPUT_BLOCKS - PADDING
        channel = step % INPUT_BLOCKS * BLOCK_INPUTS + tl.arange(0, BLOCK_INPUTS)
        seen = load_pixels(image, line, column, channel, wanted, HEIGHT, WIDTH, INPUTS)
        pixel_gram = tl.dot(seen, tl.trans(seen), pixel_gram, input_precision="ieee")
    map_gradient = gradients + row * (POSITIONS * OUTPUTS)
    gradient_gram = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, OUTPUTS, BLOCK_OUTPUTS):
        output = start + tl.arange(0, BLOCK_OUTPUTS)
        places = map_gradient + position[:, None] * OUTPUTS + output[None, :]
        gradient = tl.load(places, mask=wanted[:, None], other=0.0)
        gradient_gram = tl.dot(gradient, tl.trans(gradient), gradient_gram, input_precision="ieee")
    tl.store(products + program, tl.sum(pixel_gram * gradient_gram))


def gram_shifted(
    activations: Tensor, gradient: Tensor, tile: GramTile | None = None, weighted: GramTile | None = None
) -> Tensor:
    """The squared norm of each row's weight gradient in parts (N, programs), with padding 1 on square maps.

    The positions and both channel counts are multiples of 16. ``tile`` and ``weighted`` are of the two kernels.
    """
    maps = checked_maps(activations, gradient, padding=1)
    rows, positions, device = len(maps.gradient), maps.positions, maps.gradient.device
    (inputs, outputs), (side, columns) = maps.channels, maps.gradient.shape[2:]
    tile, weighted = tile or tiles.SHIFTED_GRAM, weighted or tiles.WEIGHTED_GRAM
    if side != columns or positions % tiles.SMALLEST:
        raise InputError(
            f"gram_shifted takes square maps with a multiple of {tiles.SMALLEST} positions, "
            f"but these are {side}x{columns}."
        )
    # The products of 3 x channels values overflow in float16; bfloat16 has the range of single precision.
    kind = torch.float32 if gradient.dtype == torch.float16 else gradient.dtype
    grams = torch.empty(rows, positions, positions, dtype=kind, device=device)
    block = gcd(tile.positions, positions)
    shifted_gram_kernel[(rows * (positions // block) ** 2,)](
        maps.activations,
        grams,
        SIDE=side,
        CHANNELS=inputs,
        BLOCK=block,
        BLOCK_CHANNELS=gcd(tile.channels, inputs),
        num_warps=tile.warps,
        num_stages=tiles.stages_on(device, tile.stages),
    )
    block = gcd(weighted.positions, positions)
    products = gram_shifted_parts(*maps, weighted)
    weighted_gram_kernel[(products.numel(),)](
        maps.gradient,
        grams,
        products,
        SIDE=side,
        CHANNELS=outputs,
        BLOCK=block,
        BLOCK_CHANNELS=gcd(weighted.channels, outputs),
        num_warps=weighted.warps,
        num_stages=tiles.stages_on(device, weighted.stages),
    )
    return products


def gram_shifted_parts(activations: Tensor, gradient: Tensor, weighted: GramTile | None = None) -> Tensor:
    """Room for the sum of every program: (N, programs of a row)."""
    positions = gradient.shape[2] * gradient.shape[3]
    programs = (positions // gcd((weighted or tiles.WEIGHTED_GRAM).positions, positions)) ** 2
    return torch.empty(len(gradient), programs, dtype=torch.float32, device=gradient.device)


def gram_small(activations: Tensor, gradient: Tensor, padding: int, tile: SmallTile | None = None) -> Tensor:
    """The squared norm of each row's weight gradient in parts (N, programs), on maps of at most 64 positions.

    Both channel counts are multiples of 16.
    """
    maps = checked_maps(activations, gradient, padding)
    if maps.positions > tiles.MOST_SMALL_POSITIONS:
        raise InputError(
            f"gram_small takes maps of up to {tiles.MOST_SMALL_POSITIONS} positions, but these have {maps.positions}."
        )
    (inputs, outputs), device = maps.channels, maps.gradient.device
    tile = tile or tiles.SMALL
    products = gram_small_parts(*maps)
    gram_small_kernel[(products.numel(),)](
        maps.gradient,
        maps.activations,
        products,
        **maps.sizes(padding),
        BLOCK=max(tiles.SMALLEST, triton.next_power_of_2(maps.positions)),
        BLOCK_OUTPUTS=gcd(tile.channels, outputs),
        BLOCK_INPUTS=gcd(tile.channels, inputs),
        num_warps=tile.warps,
        num_stages=tiles.stages_on(device, tile.stages),
    )
    return products


def gram_small_parts(activations: Tensor, gradient: Tensor) -> Tensor:
    """Room for the sum of every program: (N, programs of a row)."""
    return torch.empty(len(gradient), 3, dtype=torch.float32, device=gradient.device)
