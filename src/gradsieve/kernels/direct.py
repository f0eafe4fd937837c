"""Squared norms of the rows' weight gradients from the gradients themselves, tile by tile in registers.

Row i's weight gradient is a product over the positions of the map: the output gradient there times
the pixels that the kernel sees there. A program takes one row of the batch, one line of the 3x3
kernel (three taps) and a tile of output and input channels. It finds the pixels as it goes, so
no windows are laid out, and ends with the sum of squares of its tile; writing the tile too is optional.
"""

# Triton comes with the CUDA builds of PyTorch only, and pyright does not see what jit makes of a function.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gradsieve.kernels import tiles
from gradsieve.kernels.maps import Maps, checked_maps, store_arguments
from gradsieve.kernels.pixels import load_pixels
from gradsieve.kernels.tiles import ProductTile

WIDEST_BULK = 64  # columns of a map: wider boxes leave no shared memory for a second pipeline stage


@triton.jit
def place_of(
    program,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):
    """A program's row of the batch, line of the kernel, first output channel and first input channel."""
    OUTPUT_BLOCKS: tl.constexpr = OUTPUTS // BLOCK_OUTPUTS
    INPUT_BLOCKS: tl.constexpr = INPUTS // BLOCK_INPUTS
    # The programs of a row follow each other, so that its maps are still in the cache.
    row = program // (3 * OUTPUT_BLOCKS * INPUT_BLOCKS)
    kernel_line = (program // (OUTPUT_BLOCKS * INPUT_BLOCKS)) % 3
    first_output = (program // INPUT_BLOCKS) % OUTPUT_BLOCKS * BLOCK_OUTPUTS
    first_input = program % INPUT_BLOCKS * BLOCK_INPUTS
    return row, kernel_line, first_output, first_input


@triton.jit
def store_taps(left, middle, right, weights, kernel_line, output, channel, INPUTS: tl.constexpr):
    """Write three taps into one row's ``weights``, laid out [outputs, kernel line, tap, inputs]."""
    kind = weights.dtype.element_ty
    places = weights + output[:, None] * (9 * INPUTS) + kernel_line * (3 * INPUTS) + channel[None, :]
    tl.store(places, left.to(kind))
    tl.store(places + INPUTS, middle.to(kind))
    tl.store(places + 2 * INPUTS, right.to(kind))


@triton.jit
def direct_bulk_kernel(
    gradients,  # descriptor of (N x positions, outputs)
    images,  # descriptor of (N, height, width, inputs)
    stored,
    squares,
    stored_stride,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDING: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    BLOCK_LINES: tl.constexpr,
    STORE: tl.constexpr,
):
    """Boxes of whole lines, fetched by the copy engine, which fills in the zeros of the padding itself."""
    BLOCK_POSITIONS: tl.constexpr = BLOCK_LINES * COLUMNS
    program = tl.program_id(0)
    row, kernel_line, first_output, first_input = place_of(program, OUTPUTS, INPUTS, BLOCK_OUTPUTS, BLOCK_INPUTS)
    left = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    middle = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    right = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    for line in range(0, LINES, BLOCK_LINES):
        gradient = tl.trans(gradients.load([(row * LINES + line) * COLUMNS, first_output]))
        seen = line + kernel_line - PADDING
        at_left = images.load([row, seen, 0 - PADDING, first_input]).reshape(BLOCK_POSITIONS, BLOCK_INPUTS)
        at_middle = images.load([row, seen, 1 - PADDING, first_input]).reshape(BLOCK_POSITIONS, BLOCK_INPUTS)
        at_right = images.load([row, seen, 2 - PADDING, first_input]).reshape(BLOCK_POSITIONS, BLOCK_INPUTS)
        left = tl.dot(gradient, at_left, left, input_precision="ieee")
        middle = tl.dot(gradient, at_middle, middle, input_precision="ieee")
        right = tl.dot(gradient, at_right, right, input_precision="ieee")
    if STORE:
        output = first_output + tl.arange(0, BLOCK_OUTPUTS)
        channel = first_input + tl.arange(0, BLOCK_INPUTS)
        weights = stored + row.to(tl.int64) * stored_stride
        store_taps(left, middle, right, weights, kernel_line, output, channel, INPUTS)
    tl.store(squares + program, tl.sum(left * left + middle * middle + right * right))


@triton.jit
def direct_pointers_kernel(
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
    BLOCK_INPUTS: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr,
    STORE: tl.constexpr,
):
    """The same with plain loads, for maps of any size."""
    POSITIONS: tl.constexpr = LINES * COLUMNS
    program = tl.program_id(0)
    row, kernel_line, first_output, first_input = place_of(program, OUTPUTS, INPUTS, BLOCK_OUTPUTS, BLOCK_INPUTS)
    output = first_output + tl.arange(0, BLOCK_OUTPUTS)
    channel = first_input + tl.arange(0, BLOCK_INPUTS)
    map_gradient = gradients + row.to(tl.int64) * (POSITIONS * OUTPUTS)
    image = images + row.to(tl.int64) * (HEIGHT * WIDTH * INPUTS)
    left = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    middle = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    right = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    for start in range(0, POSITIONS, BLOCK_POSITIONS):
        position = start + tl.arange(0, BLOCK_POSITIONS)
        wanted = position < POSITIONS
        line = position // COLUMNS + kernel_line - PADDING
        column = position % COLUMNS - PADDING
        gradient_places = map_gradient + position[:, None] * OUTPUTS + output[None, :]
        gradient = tl.trans(tl.load(gradient_places, mask=wanted[:, None], other=0.0))
        at_left = load_pixels(image, line, column, channel, wanted, HEIGHT, WIDTH, INPUTS)
        at_middle = load_pixels(image, line, column + 1, channel, wanted, HEIGHT, WIDTH, INPUTS)
        at_right = load_pixels(image, line, column + 2, channel, wanted, HEIGHT, WIDTH, INPUTS)
        left = tl.dot(gradient, at_left, left, input_precision="ieee")
        middle = tl.dot(gradient, at_middle, middle, input_precision="ieee")
        right = tl.dot(gradient, at_right, right, input_precision="ieee")
    if STORE:
        weights = stored + row.to(tl.int64) * stored_stride
        store_taps(left, middle, right, weights, kernel_line, output, channel, INPUTS)
    tl.store(squares + program, tl.sum(left * left + middle * middle + right * right))


def direct(activations: Tensor, gradient: Tensor, padding: int, store: Tensor | None = None) -> Tensor:
    """The squared norm of each row's weight gradient in parts (N, programs); the gradient itself goes to ``store``.

    Both channel counts are multiples of 16.
    """
    maps = checked_maps(activations, gradient, padding)
    launch = direct_bulk if can_copy_in_bulk(maps) else direct_pointers
    return launch(*maps, padding, store)


def direct_parts(activations: Tensor, gradient: Tensor) -> Tensor:
    """An empty tensor of the shape that ``direct`` returns, which depends on shapes and device alone."""
    maps = Maps(activations, gradient)
    inputs, outputs = maps.channels
    bulk = can_copy_in_bulk(maps)
    return partial_sums(maps, bulk_tile(gradient.shape[3], outputs, inputs) if bulk else pointer_tile(outputs, inputs))


def can_copy_in_bulk(maps: Maps) -> bool:
    """Whether boxes of whole lines of this map can be described to the copy engine and fill a program."""
    inputs, outputs = maps.channels
    columns = maps.gradient.shape[3]
    tile = bulk_tile(columns, outputs, inputs)
    return (
        tiles.has_large_shared_memory(maps.gradient.device)  # where it is, there is a copy engine
        and columns & (columns - 1) == 0
        and columns <= WIDEST_BULK
        and box_lines(maps, tile) * columns >= tiles.SMALLEST
        # With fewer than 64 channels the tensor cores of these GPUs are fed in another way, which was not measured.
        and min(tile.outputs, tile.inputs) >= 64
    )


def bulk_tile(columns: int, outputs: int, inputs: int) -> ProductTile:
    return tiles.fitted(tiles.BULK.get(columns, tiles.BULK_OTHER), outputs, inputs)


def pointer_tile(outputs: int, inputs: int) -> ProductTile:
    return tiles.fitted(tiles.POINTERS, outputs, inputs)


def box_lines(maps: Maps, tile: ProductTile) -> int:
    """Lines in a box: a divisor of the map's lines, so that no box reaches into the next row's gradient."""
    lines, columns = maps.gradient.shape[2:]
    return gcd(lines, max(1, tile.positions // columns))


def direct_bulk(
    activations: Tensor, gradient: Tensor, padding: int, store: Tensor | None = None, tile: ProductTile | None = None
) -> Tensor:
    """``direct`` by bulk copies of boxes: the columns of the output map are a power of two."""
    maps = checked_maps(activations, gradient, padding)
    (inputs, outputs), (lines, columns) = maps.channels, maps.gradient.shape[2:]
    tile = tiles.fitted(tile, outputs, inputs) if tile else bulk_tile(columns, outputs, inputs)
    block_lines = box_lines(maps, tile)
    squares = partial_sums(maps, tile)
    direct_bulk_kernel[(squares.numel(),)](
        TensorDescriptor.from_tensor(aligned(maps.gradient).flatten(0, 2), [block_lines * columns, tile.outputs]),
        TensorDescriptor.from_tensor(aligned(maps.activations), [1, block_lines, columns, tile.inputs]),
        *store_arguments(maps, store, squares),
        LINES=lines,
        COLUMNS=columns,
        PADDING=padding,
        OUTPUTS=outputs,
        INPUTS=inputs,
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_INPUTS=tile.inputs,
        BLOCK_LINES=block_lines,
        STORE=store is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return squares


def direct_pointers(
    activations: Tensor, gradient: Tensor, padding: int, store: Tensor | None = None, tile: ProductTile | None = None
) -> Tensor:
    """``direct`` by plain loads: maps of any size, GPUs without bulk copies."""
    maps = checked_maps(activations, gradient, padding)
    (inputs, outputs), device = maps.channels, maps.gradient.device
    tile = tiles.fitted(tile, outputs, inputs) if tile else pointer_tile(outputs, inputs)
    squares = partial_sums(maps, tile)
    direct_pointers_kernel[(squares.numel(),)](
        maps.gradient,
        maps.activations,
        *store_arguments(maps, store, squares),
        **maps.sizes(padding),
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_INPUTS=tile.inputs,
        BLOCK_POSITIONS=tile.positions,
        STORE=store is not None,
        num_warps=tile.warps,
        num_stages=tiles.stages_on(device, tile.stages),
    )
    return squares


def partial_sums(maps: Maps, tile: ProductTile) -> Tensor:
    """Room for the sum of squares of every program: (N, programs of a row)."""
    inputs, outputs = maps.channels
    programs = 3 * (outputs // tile.outputs) * (inputs // tile.inputs)
    return torch.empty(len(maps.gradient), programs, dtype=torch.float32, device=maps.gradient.device)


def aligned(values: Tensor) -> Tensor:
    """``dense``, copied if it does not begin at a multiple of 16 bytes, as the copy engine needs."""
    return dense(values.clone() if values.storage_offset() * values.element_size() % 16 else values)


def dense(values: Tensor) -> Tensor:
    """Channels last as a (N, height, width, channels) view whose strides are those of the shape.

    A side of length 1 may have any stride, which does no harm until a descriptor checks its alignment.
    """
    rows, channels, height, width = values.shape
    return values.as_strided(
        (rows, height, width, channels), (height * width * channels, width * channels, channels, 1)
    )
