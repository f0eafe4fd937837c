"""Which kernel computes a convolution's row norms, decided by shapes and device alone: nothing is timed.

The forms that won on the layers of cnn9 (128 rows, bfloat16, an H200); ``benchmarks/kernels.py`` times them anew:

    layer                      form
    1    3 -> 128, 32x32       first, stored
    2-3  128 -> 128, 32x32     direct, stored
    4-6  to 256, 16x16         gram_shifted
    7-9  36, 16, 4 positions   gram_small
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from types import ModuleType

import torch
from torch import Tensor, nn

from gradsieve.kernels import enabled, tiles

SHIFTED_SIDE = 16  # the one size of map at which gram_shifted was measured


@dataclass(frozen=True)
class Form:
    """One way to the squared norms of the rows' weight gradients of a layer."""

    name: str
    padding: int
    stores: bool  # whether to keep the rows' weight gradients, which are small, for ``kept_sum`` to sum

    def squared_norm(self, activations: Tensor, gradient: Tensor) -> Tensor:
        """The squared norm of each row's weight gradient: (N,)."""
        return ops().row_norms(self.name, activations, gradient, self.padding).sum(1)

    def squared_norm_and_products(self, activations: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and the weight gradients [outputs, 3, 3, inputs] themselves, one row each."""
        parts, products = ops().row_norms_and_products(self.name, activations, gradient, self.padding)
        return parts.sum(1), products


def ops() -> ModuleType:
    """The operators, imported only once a kernel is chosen: Triton may not be installed otherwise."""
    from gradsieve.kernels import ops

    return ops


def kernel_for(layer: nn.Conv2d, activations: Tensor, gradient: Tensor) -> Form | None:
    """The kernel that wins for this layer and its input and output gradient; None leaves it to PyTorch."""
    padding = plain_padding(layer)
    if padding is None or not are_maps_of(layer, padding, activations, gradient) or not can_run(activations, gradient):
        return None
    inputs, outputs = layer.in_channels, layer.out_channels
    lines, columns = gradient.shape[2:]
    positions = lines * columns
    # A weight gradient no larger than its two factors is cheaper to keep than to recompute for the kept rows.
    stores = 9 * inputs * outputs <= activations[0].numel() + gradient[0].numel()
    if inputs <= tiles.MOST_FIRST_INPUTS:
        return Form("first", padding, stores) if fills_tiles(outputs) else None
    if not (fills_tiles(inputs) and fills_tiles(outputs)):
        return None
    if positions <= tiles.MOST_SMALL_POSITIONS:
        return Form("gram_small", padding, stores=False)
    square = lines == columns == SHIFTED_SIDE
    if square and padding == 1 and shifted_gram_is_cheaper(positions, inputs, outputs):
        return Form("gram_shifted", padding, stores=False)
    return Form("direct", padding, stores)


def plain_padding(layer: nn.Conv2d) -> int | None:
    """The zeros around the input of a plain 3x3 convolution, 0 or 1; None for any other layer."""
    plain = (
        type(layer) is nn.Conv2d  # a subclass may compute something else
        and layer.kernel_size == (3, 3)
        and layer.stride == (1, 1)
        and layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
    )
    sides = set(layer._reversed_padding_repeated_twice) if plain else set()  # "same" and "valid" in numbers
    return sides.pop() if sides in ({0}, {1}) else None


def are_maps_of(layer: nn.Conv2d, padding: int, activations: Tensor, gradient: Tensor) -> bool:
    """Whether the shapes are those of the layer's input and output, with the channels last in memory."""
    if activations.ndim != 4 or not len(activations):
        return False
    rows, _, height, width = activations.shape
    return (
        activations.shape[1] == layer.in_channels
        and gradient.shape == (rows, layer.out_channels, height + 2 * padding - 2, width + 2 * padding - 2)
        and activations.is_contiguous(memory_format=torch.channels_last)
        and gradient.is_contiguous(memory_format=torch.channels_last)
    )


def takes_kernel(products: Tensor) -> bool:
    """Whether ``kept_sum`` takes and suits stored weight gradients: large ones in half precision, side by side."""
    return products.dim() > 2 and products.is_contiguous() and can_run(products, products)


def can_run(activations: Tensor, gradient: Tensor) -> bool:
    """Whether the kernels take this type on this device: half precision on an NVIDIA GPU with tensor cores for both."""
    return (
        activations.dtype == gradient.dtype
        and gradient.dtype in (torch.bfloat16, torch.float16)
        and activations.device == gradient.device
        and gradient.is_cuda
        and torch.version.hip is None
        and gradient.device.index == torch.cuda.current_device()  # where Triton launches
        and torch.cuda.get_device_capability(gradient.device) >= (8, 0)
        and enabled()
    )


def fills_tiles(channels: int) -> bool:
    """Whether tiles of a useful size divide the channels: 16, 32 or a multiple of 64 of them."""
    return channels >= tiles.SMALLEST and gcd(channels, 64) == min(channels, 64)


def shifted_gram_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Compare multiplications: two half Gram matrices, one of them over three taps, with nine taps of products."""
    return positions * (3 * inputs + outputs) < 2 * 9 * inputs * outputs
