"""Forms of some layers that a compiler can fuse better, with the values of the usual form up to rounding.

A norm layer written as sums per row and channel reads the map twice, once for the sums and once to scale it, and the
compiler fuses both passes with their neighbours. BatchNorm and GroupNorm then differ only in arithmetic on (N, C).
Scale and shift are laid out per row, so that their gradients are summed within a row first, which runs faster; and
they may be given per row, (N, C), which makes their gradient each row's own share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import floordiv, mod
from typing import Any

import torch
import torch._inductor.test_operators  # registers the operator that KeptApart stands for
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradsieve.scores.layer_calls import ROW_LAYERS
from gradsieve.scores.outer_products import wide

# Their lowered forms take a scale and a shift for each row.
TAKE_ROWS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
VECTOR = 8  # half-precision values in a 16-byte load: channels are padded to a multiple of it


class Lowered(TorchFunctionMode):
    """While active, calls of the functions in ``FORMS`` run their lowered form."""

    def __enter__(self) -> Lowered:
        self.token = ROW_LAYERS.set(TAKE_ROWS)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        ROW_LAYERS.reset(self.token)
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return FORMS.get(func, func)(*args, **(kwargs or {}))


def batch_norm(
    maps: Tensor,  # (N, C, ...)
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,  # (C,), or (N, C)
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm``, with its statistics as sums of the rows' sums."""
    by_row = weight is not None and weight.dim() == 2
    if maps.dim() < 3 and not by_row:
        return F.batch_norm(maps, running_mean, running_var, weight, bias, training, momentum, eps)
    if training or running_mean is None or running_var is None:
        count = len(maps) * prod(maps.shape[2:])
        total, squares = (kept_apart(sums.sum(0)) for sums in channel_sums(maps))
        mean = total / count
        variance = (squares / count - mean * mean).clamp(min=0)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.detach().to(running_mean.dtype), momentum)
                unbiased = variance.detach() * (count / max(1, count - 1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    else:
        mean, variance = running_mean, running_var
    return scale_and_shift(maps, mean, (variance + eps).rsqrt(), weight, bias)


def group_norm(
    maps: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """``F.group_norm``, with statistics as sums of the channels' sums; the result keeps the precision of the maps."""
    rows, channels = maps.shape[:2]
    count = prod(maps.shape[2:]) * channels // num_groups
    total, squares = (kept_apart(sums.view(rows, num_groups, -1).sum(2)) for sums in channel_sums(maps))
    mean = total / count
    variance = (squares / count - mean * mean).clamp(min=0)
    of_channel = (rows, num_groups, channels // num_groups)
    mean, deviation = (
        values.unsqueeze(2).expand(of_channel).reshape(rows, channels) for values in (mean, (variance + eps).rsqrt())
    )
    return scale_and_shift(maps, mean, deviation, weight, bias)


def channel_sums(maps: Tensor) -> tuple[Tensor, Tensor]:  # (N, C, ...) -> (N, C), (N, C)
    """The sum and the sum of squares over the positions of each channel, in single precision at least."""
    values = wide(maps).flatten(2) if maps.dim() > 2 else wide(maps).unsqueeze(2)
    return values.sum(2), (values * values).sum(2)


def scale_and_shift(
    maps: Tensor, mean: Tensor, inverse_deviation: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """(maps - mean) * inverse_deviation * weight + bias, as one multiplication and one addition."""
    scale = inverse_deviation if weight is None else inverse_deviation * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = *maps.shape[:2], *[1] * (maps.dim() - 2)
    scale, shift = (kept_apart(values).expand(maps.shape[:2]).reshape(shape) for values in (scale, shift))
    return (wide(maps) * scale + shift).to(maps.dtype)


class KeptApart(torch.autograd.Function):
    """The identity, for small values used at every position of a map: they and their gradients are computed once, in
    kernels of their own. Otherwise the compiler would fuse them into the map's kernel and recompute them there."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return torch.ops._inductor_test.realize(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.ops._inductor_test.realize(gradient)


def kept_apart(values: Tensor) -> Tensor:
    return KeptApart.apply(values)  # pyright: ignore[reportReturnType]


def conv2d(inputs: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """``F.conv2d``; on a GPU in half precision, zeros fill up an image's few channels to whole loads."""
    missing = -inputs.shape[1] % VECTOR
    is_half = inputs.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(inputs.device.type)
    if inputs.is_cuda and is_half and inputs.dim() == 4 and missing and weight.shape[1] == inputs.shape[1]:
        inputs, weight = (F.pad(values, (0, 0, 0, 0, 0, missing)) for values in (inputs, weight))
    return F.conv2d(inputs, weight, bias, *args, **kwargs)


def max_pool2d(
    maps: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, *args: Any, **options: Any
) -> Tensor:
    """``F.max_pool2d``; where the windows tile the maps and nothing asks for the positions of the maxima, as a maximum
    over two dimensions, which the compiler fuses with the layer before."""
    window, step, around, apart = map(pair, (kernel_size, stride or kernel_size, padding, dilation))
    tiles = step == window and around == (0, 0) and apart == (1, 1) and not any(map(mod, maps.shape[2:], window))
    asked = (maps.requires_grad and torch.is_grad_enabled()) or options.get("return_indices") or args
    if maps.dim() != 4 or not tiles or asked:
        return F.max_pool2d(maps, kernel_size, stride, padding, dilation, *args, **options)
    rows, columns = map(floordiv, maps.shape[2:], window)
    return maps.view(*maps.shape[:2], rows, window[0], columns, window[1]).amax((3, 5))


def pair(value: int | Sequence[int]) -> tuple[int, ...]:
    """A number for each of two dimensions, from one for both or one for each."""
    return (value, value) if isinstance(value, int) else tuple(value) * (2 // len(value))


FORMS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.batch_norm: batch_norm,
    F.group_norm: group_norm,
    torch.conv2d: conv2d,
    F.max_pool2d: max_pool2d,
}
