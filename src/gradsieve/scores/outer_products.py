"""Sums of outer products over positions, which is what the weight gradient of a row is.

At each position (a token, a pixel) a linear layer adds the outer product of its output gradient
and its input; a convolution does the same with the window that its kernel sees. Factors are
(N, groups, positions, features). The norm of the sum does not need the sum itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as every
from math import prod
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve.kernels.choice import takes_kernel
from gradsieve.tracing import is_traced

# The most bytes of windows at a time: they repeat each pixel for every tap of the kernel, so a whole batch may not fit
# into memory. On a CPU, pieces that fit into the cache are also several times as fast.
WINDOW_BYTES = {"cpu": 2**23, "cuda": 2**30}
FEW_VALUES = 64  # windows of at most so many values, as in a first layer on images, are laid out whole on a GPU
SHIFT_COST = 16  # multiplications in the time of one addition to a Gram matrix, which is bound by memory


def wide(values: Tensor) -> Tensor:
    """``values`` in at least single precision, in which sums over positions and squares are taken."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def as_real(values: Tensor) -> Tensor:
    """Complex numbers as two real ones each."""
    return torch.view_as_real(values) if values.is_complex() else values


def sum_of_squares(share: Tensor) -> Tensor:  # (N, ...) -> (N,)
    share = as_real(share)
    return (share.flatten(1) if share.dim() > 1 else share.unsqueeze(1)).square().sum(1)  # works without rows, too


def sum_of_rows(shares: Tensor, rows: Tensor) -> Tensor:  # (N, ...), (K,) -> (...)
    """The sum of some rows, in single precision at least."""
    channels_last = shares.movedim(2, -1) if shares.dim() > 3 else shares  # a convolution's memory layout
    if takes_kernel(channels_last):
        from gradsieve.kernels.ops import kept_sum

        total = kept_sum(channels_last.flatten(1), rows).view(channels_last.shape[1:])
    elif is_traced(shares) and shares.is_cuda and shares.dtype == torch.bfloat16 and shares.dim() > 3:
        # As a matrix product, rounded like every weight gradient. A compiler would fuse a plain sum with those of small
        # parameters, in a kernel that suits only these.
        picked = channels_last[rows].flatten(1)
        total = wide(picked.new_ones(1, len(rows)) @ picked).view(channels_last.shape[1:])
    else:
        total = wide(channels_last[rows]).sum(0)
    return total.movedim(-1, 1) if shares.dim() > 3 else total


def gram_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """The cost rule: two positions x positions matrices against one inputs x outputs matrix, per row."""
    return 2 * positions * positions < inputs * outputs


def multiply(left: Tensor, right: Tensor) -> Tensor:
    return wide(narrow_multiply(left, right))


def narrow_multiply(left: Tensor, right: Tensor) -> Tensor:
    # bfloat16 multiplies as it is, like every backward under autocast; float16 would overflow in a sum.
    if left.dtype == torch.float16:
        left, right = wide(left), wide(right)
    return left @ right


def product(left: Tensor, right: Tensor) -> Tensor:
    """sum_t l_t r_t^T: "ngto, ngti -> ngoi"."""
    return multiply(left.mT, right)


def product_squared_norm(left: Tensor, right: Tensor) -> Tensor:
    """|| sum_t l_t r_t^T ||^2 = sum_ts (l_t . l_s)(r_t . r_s): "ngto, ngti -> n"; at one position |l|^2 |r|^2."""
    if not gram_is_cheaper(left.shape[2], right.shape[3], left.shape[3]):
        return sum_of_squares(product(left, right))
    return torch.einsum("ngts,ngts->n", multiply(left, left.mT), multiply(right, right.mT))


def pixel_gram_is_cheapest(layer: nn.Module, activations: Tensor, gradient: Tensor) -> bool:
    """Whether a convolution's norm is cheapest from products of pixels, which all taps of the kernel share."""
    if not slides_one_by_one(layer):
        return False
    taps, inputs, outputs = prod(layer.kernel_size), layer.in_channels, layer.out_channels
    seen, positions = prod(activations.shape[2:]), prod(gradient.shape[2:])
    pixel_gram = seen**2 * inputs + positions**2 * (outputs + SHIFT_COST * taps)
    window_gram = positions**2 * (taps * inputs + outputs)
    return pixel_gram < min(window_gram, positions * taps * inputs * outputs)


def slides_one_by_one(layer: nn.Module) -> TypeGuard[nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    """Whether it is a convolution with stride 1 and zero padding, without dilation and groups."""
    return (
        isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        and {*layer.stride, *layer.dilation, layer.groups} == {1}
        and layer.padding_mode == "zeros"
    )


def pixel_gram_squared_norm(layer: nn.Conv2d, activations: Tensor, gradient: Tensor) -> Tensor:
    """The squared norm of a convolution's product over windows, without windows: (N,).

    The inner product of two windows is the sum over the taps of the inner products of two pixels, so the Gram matrix
    of the windows is the sum of the shifted Gram matrices of the pixels.
    """
    size, positions = activations.shape[2:], gradient.shape[2:]
    pixels, gradients = (values.flatten(2).mT for values in (activations.to(gradient.dtype), gradient))
    between_pixels = multiply(pixels, pixels.mT).reshape(-1, *size, *size)
    between_pixels = F.pad(between_pixels, layer._reversed_padding_repeated_twice * 2)
    between_windows = None
    for taps in every(*map(range, layer.kernel_size)):
        places = [slice(tap, tap + length) for tap, length in zip(taps, positions, strict=True)]
        shifted = between_pixels[(slice(None), *places, *places)]
        between_windows = shifted.clone() if between_windows is None else between_windows.add_(shifted)
    assert between_windows is not None  # a kernel has at least one tap
    between_gradients = multiply(gradients, gradients.mT).reshape(between_windows.shape)
    return (between_windows * between_gradients).flatten(1).sum(1)


def window_bytes(layer: nn.Module, activations: Tensor, gradient: Tensor) -> int:
    """The bytes of one row's windows."""
    pixels = max(activations[0].numel(), gradient[0].numel())
    return pixels * prod(getattr(layer, "kernel_size", ())) * gradient.element_size()


def products_of_windows(layer: nn.Conv2d, activations: Tensor, gradient: Tensor) -> Tensor:
    """A convolution's product over windows, (N, outputs, kernel x inputs), for windows of few values.

    Zeros fill each window up to a multiple of 8 values: otherwise the product takes a slow path on a GPU.
    """
    padded = F.pad(activations.to(gradient.dtype), layer._reversed_padding_repeated_twice)
    right = windows(layer, padded, gradient.shape[2:]).squeeze(1)
    columns = right.shape[-1]
    return narrow_multiply(gradient.flatten(2), F.pad(right, (0, -columns % 8)))[..., :columns]


def products_by_line(layer: nn.Conv2d, activations: Tensor, gradient: Tensor) -> Tensor:
    """A convolution's product over windows with one copy of the map per column of the kernel, not per tap of it:
    (N, outputs, kernel x inputs). The lines of the kernel are shifts of whole lines of the map, which need no copy.
    """
    size = gradient.shape[2:]
    padded = F.pad(activations.to(gradient.dtype), layer._reversed_padding_repeated_twice).movedim(1, -1)
    lines, columns = layer.kernel_size
    beside = torch.cat([padded[:, :, tap : tap + size[1]] for tap in range(columns)], -1)  # (N, H, W, columns x C)
    left = gradient.flatten(2)  # (N, outputs, positions)
    shifts = [beside[:, tap : tap + size[0]].flatten(1, 2) for tap in range(lines)]
    return torch.cat([narrow_multiply(left, shifted) for shifted in shifts], 2)


def in_pieces(
    function: Callable[[Tensor, Tensor], Tensor], row_bytes: int, activations: Tensor, gradient: Tensor
) -> Tensor:
    """``function`` of some rows at a time, as many as ``WINDOW_BYTES`` allow."""
    rows = max(1, WINDOW_BYTES.get(gradient.device.type, 2**30) // row_bytes)
    if rows >= len(gradient):
        return function(activations, gradient)
    return torch.cat([function(*some) for some in zip(activations.split(rows), gradient.split(rows), strict=True)])


def by_group(layer: nn.Conv2d | nn.ConvTranspose2d, values: Tensor) -> Tensor:
    """The channels at each position: (N, groups x C, ...) -> (N, groups, positions, C)."""
    return values.reshape(len(values), layer.groups, values.shape[1] // layer.groups, -1).mT


def windows(layer: nn.Conv2d | nn.ConvTranspose2d, padded: Tensor, positions: Sequence[int]) -> Tensor:
    """What the kernel sees at each position: (N, groups, positions, kernel x channels)."""
    last = padded.movedim(1, -1).contiguous()  # channels last, so that a pixel's values are copied together
    row, *pixel, _ = last.stride()
    moves = [step * stride for step, stride in zip(pixel, layer.stride, strict=True)]
    taps = [step * dilation for step, dilation in zip(pixel, layer.dilation, strict=True)]
    channels = last.shape[-1] // layer.groups
    sizes = (len(last), layer.groups, *positions, *layer.kernel_size, channels)
    seen = last.as_strided(sizes, (row, channels, *moves, *taps, 1))
    return seen.reshape(len(last), layer.groups, prod(positions), prod(layer.kernel_size) * channels)
