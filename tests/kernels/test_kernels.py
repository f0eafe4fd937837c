"""Every kernel against autograd, row by row in double precision: on the GPU in bfloat16, or interpreted."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton.tools.tensor_descriptor")

from gradsieve.errors import InputError
from gradsieve.kernels import tiles
from gradsieve.kernels.direct import can_copy_in_bulk, direct, direct_bulk, direct_pointers
from gradsieve.kernels.first import first
from gradsieve.kernels.gram import gram_shifted, gram_small
from gradsieve.kernels.kept import kept_sum
from gradsieve.kernels.maps import checked_maps
from gradsieve.kernels.tiles import FirstTile, GramTile, KeptTile, ProductTile, SmallTile

ON_GPU = torch.cuda.is_available()
DEVICE, KIND = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
needs_bulk_copies = pytest.mark.skipif(
    not tiles.has_large_shared_memory(torch.device(DEVICE)), reason="this GPU copies nothing in bulk"
)
TOLERANCE = 1e-2 if ON_GPU else 1e-4  # of stored values and Gram matrices, which bfloat16 rounds


def maps(rows, inputs, outputs, size, padding):
    """Activations that are mostly positive, as after a ReLU, and gradients around 0, channels last."""
    lines, columns = size
    generator = torch.Generator().manual_seed(rows + inputs + outputs + lines)
    activations = torch.randn(rows, inputs, lines, columns, generator=generator) + 0.5
    gradient = torch.randn(rows, outputs, lines + 2 * padding - 2, columns + 2 * padding - 2, generator=generator)
    return tuple(
        values.to(DEVICE, KIND).contiguous(memory_format=torch.channels_last) for values in (activations, gradient)
    )


def row_gradients(activations, gradient, padding):
    """Each row's weight gradient in double precision: (N, outputs, 3, 3, inputs)."""
    rows = []
    for row, at_output in zip(activations.cpu().double(), gradient.cpu().double(), strict=True):
        weight = torch.zeros(len(at_output), len(row), 3, 3, dtype=torch.float64, requires_grad=True)
        F.conv2d(row[None], weight, padding=padding).backward(at_output[None])
        rows.append(weight.grad.permute(0, 2, 3, 1))
    return torch.stack(rows)


def squared_norms(gradients):
    return gradients.flatten(1).square().sum(1)


def assert_norms(parts, gradients):
    got = parts.sum(1)
    assert got.shape == gradients.shape[:1]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu().double(), squared_norms(gradients), rtol=TOLERANCE, atol=0)


def assert_stored(stored, gradients):
    scale = gradients.abs().max().item()
    torch.testing.assert_close(
        stored.cpu().double(), gradients.flatten(1), rtol=TOLERANCE, atol=TOLERANCE * scale, check_dtype=False
    )


# name: rows, inputs, outputs, (height, width), padding
DIRECT = {
    "padded": (3, 64, 64, (8, 8), 1),
    "unpadded": (1, 64, 64, (6, 10), 0),
    "more inputs": (1, 128, 64, (4, 4), 1),
    "more outputs": (1, 64, 128, (3, 16), 1),
    "32 wide": (1, 64, 64, (2, 32), 1),
}
POINTERS = {
    **DIRECT,
    "few channels": (3, 16, 32, (4, 4), 1),
    "odd maps": (2, 32, 16, (5, 7), 1),
    "odd, unpadded": (1, 48, 16, (9, 6), 0),
    "one position": (2, 16, 16, (3, 3), 0),
}


@needs_bulk_copies
@pytest.mark.parametrize("case", DIRECT.values(), ids=DIRECT)
def test_direct_by_bulk_copies(case):
    padding = case[-1]
    activations, gradient = maps(*case)
    assert_norms(direct_bulk(activations, gradient, padding), row_gradients(activations, gradient, padding))


@pytest.mark.parametrize("case", POINTERS.values(), ids=POINTERS)
def test_direct_by_pointers(case):
    padding = case[-1]
    activations, gradient = maps(*case)
    assert_norms(direct_pointers(activations, gradient, padding), row_gradients(activations, gradient, padding))


@pytest.mark.parametrize("launch", [pytest.param(direct_bulk, marks=needs_bulk_copies), direct_pointers])
def test_direct_in_several_tiles(launch):
    activations, gradient = maps(2, 128, 128, (4, 8), 1)
    tile = ProductTile(64, 64, 16, warps=4, stages=2)
    assert_norms(launch(activations, gradient, 1, tile=tile), row_gradients(activations, gradient, 1))


STORING = {
    "direct": (direct, (2, 64, 64, (4, 8), 1)),
    "pointers": (direct_pointers, (2, 16, 32, (5, 4), 0)),
    "first": (first, (3, 3, 16, (5, 6), 1)),
}


@pytest.mark.parametrize(("launch", "case"), STORING.values(), ids=STORING)
def test_stored_products_are_the_rows_gradients_and_nothing_beside_them_is_touched(launch, case):
    rows, inputs, outputs, _, padding = case
    activations, gradient = maps(*case)
    expected = row_gradients(activations, gradient, padding)
    size = outputs * 9 * inputs
    buffer = torch.full((rows + 1, 16 + size + 16), 7.0, dtype=KIND, device=DEVICE)  # shared with other layers
    got = launch(activations, gradient, padding, buffer[:rows, 16 : 16 + size])
    assert_norms(got, expected)
    assert_stored(buffer[:rows, 16 : 16 + size], expected)
    assert buffer[:, :16].eq(7).all()
    assert buffer[:, 16 + size :].eq(7).all()
    assert buffer[rows].eq(7).all()


def takes_bulk_copies(*case):
    return can_copy_in_bulk(checked_maps(*maps(*case), case[-1]))


@needs_bulk_copies
def test_direct_copies_in_bulk_only_where_a_box_fits():
    assert takes_bulk_copies(1, 64, 64, (8, 8), 1)
    assert takes_bulk_copies(1, 64, 192, (18, 34), 0)
    assert not takes_bulk_copies(1, 32, 64, (8, 8), 1)  # few channels
    assert not takes_bulk_copies(1, 64, 64, (8, 12), 1)  # boxes are powers of two
    assert not takes_bulk_copies(1, 64, 64, (3, 8), 1)  # too few positions a box
    assert not takes_bulk_copies(1, 64, 64, (1, 128), 1)
    activations, gradient = maps(1, 64, 64, (8, 8), 1)
    moved = torch.empty(gradient.numel() + 1, dtype=KIND, device=DEVICE)[1:].as_strided(
        gradient.shape, gradient.stride()
    )
    moved.copy_(gradient)
    assert moved.data_ptr() % 16
    assert_norms(direct(activations, moved, 1), row_gradients(activations, gradient, 1))


FIRST = {
    "grey": (3, 1, 16, (8, 8), 1),
    "colours": (1, 3, 64, (9, 7), 1),
    "padded to 8": (2, 8, 32, (6, 6), 1),
    "unpadded": (1, 3, 48, (6, 5), 0),
    "whole tiles": (1, 3, 128, (16, 8), 1),
}


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_first(case):
    padding = case[-1]
    activations, gradient = maps(*case)
    assert_norms(first(activations, gradient, padding), row_gradients(activations, gradient, padding))


def test_first_in_several_tiles():
    activations, gradient = maps(2, 5, 32, (6, 6), 1)
    got = first(activations, gradient, 1, tile=FirstTile(16, 16, warps=4, stages=2))
    assert_norms(got, row_gradients(activations, gradient, 1))


@pytest.mark.parametrize("tile", [None, GramTile(16, 16, warps=4, stages=2), GramTile(32, 16, warps=4, stages=2)])
@pytest.mark.parametrize("case", [(3, 16, 32, 4), (2, 32, 16, 8)])
def test_gram_shifted(case, tile):
    rows, inputs, outputs, side = case
    activations, gradient = maps(rows, inputs, outputs, (side, side), 1)
    # The two kernels' tiles need not be alike.
    got = gram_shifted(activations, gradient, tile, GramTile(16, 16, warps=4, stages=2) if tile else None)
    assert_norms(got, row_gradients(activations, gradient, 1))


def test_gram_shifted_at_the_size_it_is_chosen_for():
    activations, gradient = maps(1, 64, 128, (16, 16), 1)
    assert_norms(gram_shifted(activations, gradient), row_gradients(activations, gradient, 1))


SMALL = {
    "64 positions": (1, 64, 128, (8, 8), 1),
    "36 positions": (3, 32, 64, (8, 8), 0),
    "one position": (2, 16, 16, (3, 3), 0),
    "not square": (1, 128, 16, (5, 4), 1),
}


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_gram_small(case):
    padding = case[-1]
    activations, gradient = maps(*case)
    expected = row_gradients(activations, gradient, padding)
    assert_norms(gram_small(activations, gradient, padding), expected)
    assert_norms(gram_small(activations, gradient, padding, SmallTile(16, warps=4, stages=2)), expected)


def test_maps_that_are_not_channels_last_are_copied():
    activations, gradient = maps(2, 16, 16, (4, 4), 1)
    expected = row_gradients(activations, gradient, 1)
    plain = (activations.contiguous(), gradient.contiguous())
    for launch in (partial(direct, padding=1), gram_shifted, partial(gram_small, padding=1)):
        assert_norms(launch(*plain), expected)


def test_half_precision_gram_matrices_do_not_overflow():
    activations, gradient = (values.to(torch.float16) for values in maps(1, 32, 16, (4, 4), 1))
    activations = activations + 100  # products of 96 such values are far beyond 65504
    assert_norms(gram_shifted(activations, gradient), row_gradients(activations, gradient, 1))


@pytest.mark.parametrize("kept", [[4, 0, 2], [3], [], [1, 1, 0, 2, 3, 4, 1]])
def test_kept_sum_of_any_rows_in_any_order(kept):
    buffer = torch.randn(5, 50, generator=torch.Generator().manual_seed(0)).to(DEVICE, KIND)
    stored = buffer[:, 3:43]  # its rows do not follow each other directly
    got = kept_sum(stored, torch.tensor(kept, dtype=torch.int64, device=DEVICE), KeptTile(16, 2, warps=1))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, stored[kept].float().sum(0))


def test_kept_sum_of_stored_products_is_the_gradient_of_the_kept_rows():
    activations, gradient = maps(4, 3, 16, (4, 4), 1)
    stored = torch.empty(4, 16 * 9 * 3, dtype=KIND, device=DEVICE)
    first(activations, gradient, 1, stored)
    kept = torch.tensor([3, 1], device=DEVICE)
    assert_stored(kept_sum(stored, kept)[None], row_gradients(activations, gradient, 1)[[3, 1]].sum(0, keepdim=True))


def test_what_a_kernel_would_read_or_write_past_its_end_is_refused():
    activations, gradient = maps(2, 16, 16, (4, 4), 1)
    with pytest.raises(InputError, match="3x3 convolution"):
        direct(activations, gradient, 0)
    with pytest.raises(InputError, match="3x3 convolution"):
        direct(activations, gradient[:1], 1)
    with pytest.raises(InputError, match="multiplies one type"):
        direct(activations.double(), gradient, 1)
    with pytest.raises(InputError, match="store has shape"):
        direct(activations, gradient, 1, torch.empty(2, 16 * 9 * 16 - 1, device=DEVICE))
    with pytest.raises(InputError, match="store has shape"):
        direct(activations, gradient, 1, torch.empty(16 * 9 * 16, 2, device=DEVICE).T)
    with pytest.raises(InputError, match="input channels"):
        first(activations, gradient, 1)
    with pytest.raises(InputError, match="square maps"):
        gram_shifted(*maps(1, 16, 16, (4, 8), 1))
    with pytest.raises(InputError, match="64 positions"):
        gram_small(*maps(1, 16, 16, (8, 9), 1), 1)
    with pytest.raises(InputError, match="int64"):
        kept_sum(torch.empty(2, 8, device=DEVICE), torch.tensor([0], dtype=torch.int32, device=DEVICE))
