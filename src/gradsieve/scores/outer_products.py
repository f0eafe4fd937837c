"""Sums of outer products over positions, which is what the weight gradient of a row is.

At each position (a token, a pixel) a linear layer adds the outer product of its output gradient
and its input; a convolution does the same with the window that its kernel sees. Factors are
(N, groups, positions, features). The norm of the sum does not need the sum itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn

# Windows repeat each pixel for every tap of the kernel, so they are laid out for some rows at a time. On
# a CPU pieces that stay in the cache are also several times as fast as one that has to be fetched anew.
WINDOW_BYTES = {"cpu": 2**23, "cuda": 2**30}


def wide(values: Tensor) -> Tensor:
    """``values`` in at least single precision, in which sums over positions and squares are taken."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def sum_of_squares(share: Tensor) -> Tensor:  # (N, ...) -> (N,)
    return share.reshape(len(share), -1).square().sum(1)


def gram_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """The cost rule: two positions x positions matrices against one inputs x outputs matrix, per row."""
    return 2 * positions * positions < inputs * outputs


def multiply(left: Tensor, right: Tensor) -> Tensor:
    # bfloat16 multiplies as it is, like every backward under autocast; float16 would overflow in a sum.
    if left.dtype == torch.float16:
        left, right = wide(left), wide(right)
    return wide(left @ right)


def product(left: Tensor, right: Tensor) -> Tensor:
    """sum_t l_t r_t^T: "ngto, ngti -> ngoi"."""
    return multiply(left.mT, right)


def product_squared_norm(left: Tensor, right: Tensor) -> Tensor:
    """|| sum_t l_t r_t^T ||^2 = sum_ts (l_t . l_s)(r_t . r_s): "ngto, ngti -> n"; at one position |l|^2 |r|^2."""
    if not gram_is_cheaper(left.shape[2], right.shape[3], left.shape[3]):
        return sum_of_squares(product(left, right))
    return torch.einsum("ngts,ngts->n", multiply(left, left.mT), multiply(right, right.mT))


def in_pieces(
    function: Callable[[Tensor, Tensor], Tensor], layer: nn.Module, activations: Tensor, gradient: Tensor
) -> Tensor:
    """``function`` of some rows at a time, as many as ``WINDOW_BYTES`` allow."""
    pixels = max(activations[0].numel(), gradient[0].numel())
    row_bytes = pixels * prod(getattr(layer, "kernel_size", ())) * gradient.element_size()
    rows = max(1, WINDOW_BYTES.get(gradient.device.type, 2**30) // row_bytes)
    if rows >= len(gradient):
        return function(activations, gradient)
    return torch.cat([function(*some) for some in zip(activations.split(rows), gradient.split(rows), strict=True)])


def by_group(layer: nn.Conv2d | nn.ConvTranspose2d, values: Tensor) -> Tensor:
    """The channels at each position: (N, groups x C, ...) -> (N, groups, positions, C)."""
    return values.reshape(len(values), layer.groups, values.shape[1] // layer.groups, -1).mT


def windows(layer: nn.Conv2d | nn.ConvTranspose2d, padded: Tensor, positions: Sequence[int]) -> Tensor:
    """What the kernel sees at each position: (N, groups, positions, kernel x channels)."""
    last = padded.movedim(1, -1).contiguous()  # channels last: they are copied in runs
    row, *pixel, _ = last.stride()
    moves = [step * stride for step, stride in zip(pixel, layer.stride, strict=True)]
    taps = [step * dilation for step, dilation in zip(pixel, layer.dilation, strict=True)]
    channels = last.shape[-1] // layer.groups
    sizes = (len(last), layer.groups, *positions, *layer.kernel_size, channels)
    seen = last.as_strided(sizes, (row, channels, *moves, *taps, 1))
    return seen.reshape(len(last), layer.groups, prod(positions), prod(layer.kernel_size) * channels)
