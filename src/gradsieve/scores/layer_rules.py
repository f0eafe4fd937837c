"""What each row adds to a layer's parameter gradients, from the layer's input and output gradient.

A parameter's gradient is a sum over the rows of the batch and over the positions within a row
(pixels, tokens). Stopping before the sum over the rows gives each row's share. That holds in
BatchNorm networks too, where another row's loss can reach this row's activations: the shares
still add up to the batch gradient. Where no layer mixes rows a share is the row's own gradient.

Linear layers and convolutions are the same sum of outer products, so their rules only say which
two factors to multiply. Some norms are cheaper without the share: such a rule has a way to each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve.kernels.choice import kernel_for
from gradsieve.scores.outer_products import (
    FEW_VALUES,
    by_group,
    gram_is_cheaper,
    in_pieces,
    multiply,
    pixel_gram_is_cheapest,
    pixel_gram_squared_norm,
    product,
    product_squared_norm,
    products_by_line,
    products_of_windows,
    slides_one_by_one,
    sum_of_squares,
    wide,
    window_bytes,
    windows,
)

# (layer, its input, the gradient at its output) -> the rows' shares, or their sum
OfRows = Callable[[Any, Tensor, Tensor], Tensor]
# The same -> (N, groups, positions, outputs), (N, groups, positions, inputs)
Factors = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]


class Measured(NamedTuple):
    """The squared norms of the rows' shares, and the shares if they are wanted and were computed on the way."""

    squared_norm: Tensor  # (N,)
    shares: Tensor | None = None  # (N, *parameter.shape), in the precision of the pass


# The same arguments, and whether the shares are wanted too
Measure = Callable[[Any, Tensor, Tensor, bool], Measured]


class Rule(NamedTuple):
    """How one parameter of a layer gets each row's share of its gradient."""

    share: OfRows  # -> (N, *parameter.shape)
    measure: Measure  # the norms of the shares
    total: OfRows  # the sum of the shares -> parameter.shape
    has_shortcut: bool  # whether the norm can be computed without the share


RULES: dict[type[nn.Module], dict[str, Rule]] = {}


def rule(
    parameter: str, *layers: type[nn.Module], measure: Measure | None = None, total: OfRows | None = None
) -> Callable[[OfRows], OfRows]:
    """Bind ``parameter`` of the ``layers`` to the decorated share, and to cheaper ways to its norm and its sum."""

    def bind(share: OfRows) -> OfRows:
        def measure_share(layer: Any, activations: Tensor, gradient: Tensor, hold: bool) -> Measured:
            return Measured(sum_of_squares(share(layer, activations, gradient)))

        def sum_of_shares(layer: Any, activations: Tensor, gradient: Tensor) -> Tensor:
            return share(layer, activations, gradient).sum(0)

        for layer in layers:
            known = Rule(share, measure or measure_share, total or sum_of_shares, measure is not None)
            RULES.setdefault(layer, {})[parameter] = known
        return share

    return bind


def product_rule(*layers: type[nn.Module], total: OfRows) -> Callable[[Factors], Factors]:
    """Bind the weight of ``layers`` to the two factors whose products over positions are its gradient."""

    def bind(factors: Factors) -> Factors:
        def measure(layer: Any, activations: Tensor, gradient: Tensor, hold: bool) -> Measured:
            found = measure_convolution(layer, activations, gradient, hold) if slides_one_by_one(layer) else None
            if found is not None:
                return found
            row_bytes = window_bytes(layer, activations, gradient)
            return Measured(
                in_pieces(lambda a, g: product_squared_norm(*factors(layer, a, g)), row_bytes, activations, gradient)
            )

        @rule("weight", *layers, measure=measure, total=total)
        def share(layer: Any, activations: Tensor, gradient: Tensor) -> Tensor:
            row_bytes = window_bytes(layer, activations, gradient)
            built = in_pieces(lambda a, g: product(*factors(layer, a, g)), row_bytes, activations, gradient)
            return as_weights(layer, built)

        return factors

    return bind


def as_weights(layer: Any, products: Tensor) -> Tensor:  # (N, outputs, kernel x inputs) -> (N, *weight.shape)
    outputs, inputs, *kernel = layer.weight.shape
    return products.reshape(-1, outputs, *kernel, inputs).movedim(-1, 2)


def measure_convolution(layer: Any, activations: Tensor, gradient: Tensor, hold: bool) -> Measured | None:
    """The norms of a convolution with stride 1, if there is a cheaper way than products of windows; None if not."""
    activations = activations.to(gradient.dtype)
    kernel = kernel_for(layer, activations, gradient)
    if kernel is not None and kernel.stores and hold:
        squares, products = kernel.squared_norm_and_products(activations, gradient)
        return Measured(squares, as_weights(layer, products))
    if kernel is not None:
        return Measured(kernel.squared_norm(activations, gradient))
    if pixel_gram_is_cheapest(layer, activations, gradient):
        between_pixels = 2 * prod(activations.shape[2:]) ** 2 * gradient.element_size()
        return Measured(in_pieces(partial(pixel_gram_squared_norm, layer), between_pixels, activations, gradient))
    positions, inputs = prod(gradient.shape[2:]), prod(layer.weight.shape[1:])
    # On a CPU the windows of a few rows stay in the cache, and cost no more.
    if (
        not isinstance(layer, nn.Conv2d)
        or not gradient.is_cuda
        or gram_is_cheaper(positions, inputs, len(layer.weight))
    ):
        return None
    build = products_of_windows if layer.weight[0].numel() <= FEW_VALUES else products_by_line
    products = build(layer, activations, gradient)
    small = layer.weight.numel() <= activations[0].numel() + gradient[0].numel()  # no larger than the two factors
    return Measured(sum_of_squares(wide(products)), as_weights(layer, products) if hold and small else None)


def has_rule(layer: nn.Module) -> bool:
    """Whether ``layer`` owns trainable parameters and the table covers all of them.

    The exact type counts: a subclass may compute something else, and so may a ``forward`` set on
    the object itself. A weight that is computed from others (weight norm, pruning) is not covered.
    Nor is a complex one: the rules compute with real numbers.
    """
    trainable = {name: p for name, p in layer.named_parameters(recurse=False) if p.requires_grad}
    known = RULES.get(type(layer), {}).keys()
    is_covered = trainable.keys() <= known and not any(p.is_complex() for p in trainable.values())
    return bool(trainable) and is_covered and "forward" not in vars(layer)


def sum_per_channel(values: Tensor) -> Tensor:  # (N, C, ...) -> (N, C)
    return values.reshape(*values.shape[:2], -1).sum(2)


def sum_over_middle(values: Tensor, shape: Sequence[int]) -> Tensor:  # (N, ..., *shape) -> (N, *shape)
    return values.reshape(len(values), prod(values.shape[1 : values.ndim - len(shape)]), *shape).sum(1)


# --------------------------------------------------------- layers that multiply by a weight


def linear_total(layer: nn.Linear, activations: Tensor, gradient: Tensor) -> Tensor:
    left, right = gradient.flatten(0, -2), activations.to(gradient.dtype).flatten(0, -2)
    return multiply(left.mT, right)


def conv_total(layer: nn.Conv2d | nn.ConvTranspose2d, activations: Tensor, gradient: Tensor) -> Tensor:
    """The weight gradient as torch's own backward computes it."""
    activations, padding = activations.to(gradient.dtype), layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):  # as the forward does it: pad, then convolve
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        activations = F.pad(activations, layer._reversed_padding_repeated_twice, mode)
        padding = [0] * len(layer.kernel_size)
    like = suggested_layout(activations)
    shape_alone = torch.empty(layer.weight.shape, dtype=gradient.dtype, device=gradient.device, memory_format=like)
    return wide(
        torch.ops.aten.convolution_backward(
            gradient,
            activations,
            shape_alone,
            None,
            layer.stride,
            padding,
            layer.dilation,
            layer.transposed,
            layer.output_padding,
            layer.groups,
            [False, True, False],
        )[1]
    )


def suggested_layout(values: Tensor) -> torch.memory_format:
    """Channels last if ``values`` are laid out so."""
    is_last = values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else torch.contiguous_format


@product_rule(nn.Linear, total=linear_total)
def linear_weight(layer: nn.Linear, activations: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    rows, positions = len(gradient), prod(gradient.shape[1:-1])
    right = activations.to(gradient.dtype).reshape(rows, 1, positions, layer.in_features)
    return gradient.reshape(rows, 1, positions, layer.out_features), right


@rule("bias", nn.Linear)
def linear_bias(layer: nn.Linear, activations: Tensor, gradient: Tensor) -> Tensor:
    return sum_over_middle(wide(gradient), (layer.out_features,))


@product_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, total=conv_total)
def conv_weight(layer: nn.Conv2d, activations: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    # torch keeps the padding of every mode, "same" included, in the order that F.pad wants.
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(activations.to(gradient.dtype), layer._reversed_padding_repeated_twice, mode)
    return by_group(layer, gradient), windows(layer, padded, gradient.shape[2:])


@product_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, total=conv_total)
def conv_transpose_weight(layer: nn.ConvTranspose2d, activations: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    # The transposed convolution is a convolution from the output back to the input: exchange the roles.
    padded = F.pad(gradient, layer._reversed_padding_repeated_twice)
    return by_group(layer, activations.to(gradient.dtype)), windows(layer, padded, activations.shape[2:])


def embedding_factors(layer: nn.Embedding, ids: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids (N, T) and the output gradient (N, T, D), 0 at padding and scaled as the layer's options say."""
    ids, gradient = ids.reshape(len(ids), -1), wide(gradient).reshape(len(ids), -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        gradient = gradient * (ids != layer.padding_idx).unsqueeze(2)
    if layer.scale_grad_by_freq:  # torch divides by how often the token occurs in the batch
        counts = gradient.new_zeros(layer.num_embeddings)
        counts.index_add_(0, ids.flatten(), gradient.new_ones(ids.numel()))
        gradient = gradient / counts[ids].unsqueeze(2)
    return ids, gradient


def embedding_measure(layer: nn.Embedding, ids: Tensor, gradient: Tensor, hold: bool) -> Measured:
    if not gram_is_cheaper(prod(ids.shape[1:]), layer.num_embeddings, layer.embedding_dim):
        return Measured(sum_of_squares(embedding_weight(layer, ids, gradient)))
    ids, gradient = embedding_factors(layer, ids, gradient)
    # An embedding is a linear layer over one-hot tokens, whose products are 1 where tokens are equal.
    same = ids.unsqueeze(1) == ids.unsqueeze(2)
    return Measured(((gradient @ gradient.mT) * same).sum((1, 2)))


def embedding_total(layer: nn.Embedding, ids: Tensor, gradient: Tensor) -> Tensor:
    ids, gradient = embedding_factors(layer, ids, gradient)
    total = gradient.new_zeros(layer.num_embeddings, layer.embedding_dim)
    return total.index_add_(0, ids.flatten(), gradient.flatten(0, 1))


@rule("weight", nn.Embedding, measure=embedding_measure, total=embedding_total)
def embedding_weight(layer: nn.Embedding, ids: Tensor, gradient: Tensor) -> Tensor:
    ids, gradient = embedding_factors(layer, ids, gradient)
    rows, tokens = len(ids), layer.num_embeddings
    share = gradient.new_zeros(rows * tokens, layer.embedding_dim)
    places = ids + tokens * torch.arange(rows, device=ids.device).unsqueeze(1)
    return share.index_add_(0, places.flatten(), gradient.flatten(0, 1)).view(rows, tokens, -1)


# ------------------------------------------- layers that scale and shift what they normalised


@rule("weight", nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm_weight(layer: nn.BatchNorm2d, activations: Tensor, gradient: Tensor) -> Tensor:
    x, mean, variance = wide(activations), layer.running_mean, layer.running_var
    if layer.training or mean is None or variance is None:
        normalised = F.batch_norm(x, None, None, training=True, eps=layer.eps)
    else:
        normalised = F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), eps=layer.eps)
    return sum_per_channel(wide(gradient) * normalised)


@rule("weight", nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm_weight(layer: nn.InstanceNorm2d, activations: Tensor, gradient: Tensor) -> Tensor:
    x, mean, variance = wide(activations), layer.running_mean, layer.running_var
    if layer.training or not layer.track_running_stats or mean is None or variance is None:
        normalised = F.instance_norm(x, eps=layer.eps)
    else:
        normalised = F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), eps=layer.eps)
    return sum_per_channel(wide(gradient) * normalised)


@rule("weight", nn.GroupNorm)
def group_norm_weight(layer: nn.GroupNorm, activations: Tensor, gradient: Tensor) -> Tensor:
    normalised = F.group_norm(wide(activations), layer.num_groups, eps=layer.eps)
    return sum_per_channel(wide(gradient) * normalised)


@rule("weight", nn.LayerNorm)
def layer_norm_weight(layer: nn.LayerNorm, activations: Tensor, gradient: Tensor) -> Tensor:
    normalised = F.layer_norm(wide(activations), layer.normalized_shape, eps=layer.eps)
    return sum_over_middle(wide(gradient) * normalised, layer.normalized_shape)


@rule("weight", nn.RMSNorm)
def rms_norm_weight(layer: nn.RMSNorm, activations: Tensor, gradient: Tensor) -> Tensor:
    # Not widened first: if the layer has no eps, torch takes the one of the input's precision.
    normalised = F.rms_norm(activations, layer.normalized_shape, eps=layer.eps)
    return sum_over_middle(wide(gradient) * normalised, layer.normalized_shape)


@rule("bias", nn.LayerNorm)
def layer_norm_bias(layer: nn.LayerNorm, activations: Tensor, gradient: Tensor) -> Tensor:
    return sum_over_middle(wide(gradient), layer.normalized_shape)


@rule("bias", nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
@rule("bias", nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
@rule("bias", nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def channel_bias(layer: nn.Module, activations: Tensor, gradient: Tensor) -> Tensor:
    return sum_per_channel(wide(gradient))


@rule("weight", nn.PReLU)
def prelu_weight(layer: nn.PReLU, activations: Tensor, gradient: Tensor) -> Tensor:
    slope = wide(gradient) * wide(activations).clamp(max=0)
    return sum_per_channel(slope if layer.num_parameters > 1 else slope.flatten(1).unsqueeze(1))
