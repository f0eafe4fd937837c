"""What each row adds to a layer's parameter gradients, from the layer's input and output gradient.

A parameter's gradient is a sum over the rows of the batch and over the positions within a row
(pixels, tokens). Stopping before the sum over the rows gives each row's share. That holds in
BatchNorm networks too, where another row's loss can reach this row's activations: the shares
still add up to the batch gradient. Where no layer mixes rows a share is the row's own gradient.

Linear layers and convolutions are the same sum of outer products, so their rules only say which
two factors to multiply. Some norms are cheaper to have without the share: then a rule knows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve.scores.outer_products import (
    by_group,
    gram_is_cheaper,
    in_pieces,
    product,
    product_squared_norm,
    sum_of_squares,
    wide,
    windows,
)

# (layer, its input, the gradient at its output) -> something of each row
OfRows = Callable[[Any, Tensor, Tensor], Tensor]
# The same -> (N, groups, positions, outputs), (N, groups, positions, inputs)
Factors = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]


class Rule(NamedTuple):
    """How one parameter of a layer gets each row's share of its gradient."""

    share: OfRows  # -> (N, *parameter.shape)
    squared_norm: OfRows  # of the share -> (N,)


RULES: dict[type[nn.Module], dict[str, Rule]] = {}


def rule(parameter: str, *layers: type[nn.Module], squared_norm: OfRows | None = None) -> Callable[[OfRows], OfRows]:
    """Bind ``parameter`` of the ``layers`` to the decorated share, and to a cheaper way to its norm."""

    def bind(share: OfRows) -> OfRows:
        def squared_norm_of_share(layer: Any, activations: Tensor, gradient: Tensor) -> Tensor:
            return sum_of_squares(share(layer, activations, gradient))

        for layer in layers:
            RULES.setdefault(layer, {})[parameter] = Rule(share, squared_norm or squared_norm_of_share)
        return share

    return bind


def product_rule(*layers: type[nn.Module]) -> Callable[[Factors], Factors]:
    """Bind the weight of ``layers`` to the two factors whose products over positions are its gradient."""

    def bind(factors: Factors) -> Factors:
        def squared_norm(layer: Any, activations: Tensor, gradient: Tensor) -> Tensor:
            return in_pieces(lambda a, g: product_squared_norm(*factors(layer, a, g)), layer, activations, gradient)

        @rule("weight", *layers, squared_norm=squared_norm)
        def share(layer: Any, activations: Tensor, gradient: Tensor) -> Tensor:
            built = in_pieces(lambda a, g: product(*factors(layer, a, g)), layer, activations, gradient)
            outputs, inputs, *kernel = layer.weight.shape
            return built.reshape(-1, outputs, *kernel, inputs).movedim(-1, 2)

        return factors

    return bind


def has_rule(layer: nn.Module) -> bool:
    """Whether ``layer`` owns trainable parameters and the table covers all of them.

    The exact type counts: a subclass may compute something else, and so may a ``forward`` set on
    the object itself. A weight that is computed from others (weight norm, pruning) is not covered.
    """
    trainable = {name for name, p in layer.named_parameters(recurse=False) if p.requires_grad}
    known = RULES.get(type(layer), {}).keys()
    return bool(trainable) and trainable <= known and "forward" not in vars(layer)


def sum_per_channel(values: Tensor) -> Tensor:  # (N, C, ...) -> (N, C)
    return values.reshape(*values.shape[:2], -1).sum(2)


def sum_over_middle(values: Tensor, shape: Sequence[int]) -> Tensor:  # (N, ..., *shape) -> (N, *shape)
    return values.reshape(len(values), prod(values.shape[1 : values.ndim - len(shape)]), *shape).sum(1)


# --------------------------------------------------------- layers that multiply by a weight


@product_rule(nn.Linear)
def linear_weight(layer: nn.Linear, activations: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    rows, positions = len(gradient), prod(gradient.shape[1:-1])
    right = activations.to(gradient.dtype).reshape(rows, 1, positions, layer.in_features)
    return gradient.reshape(rows, 1, positions, layer.out_features), right


@rule("bias", nn.Linear)
def linear_bias(layer: nn.Linear, activations: Tensor, gradient: Tensor) -> Tensor:
    return sum_over_middle(wide(gradient), (layer.out_features,))


@product_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def conv_weight(layer: nn.Conv2d, activations: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    # torch keeps the padding of every mode, "same" included, in the order that F.pad wants.
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(activations.to(gradient.dtype), layer._reversed_padding_repeated_twice, mode)
    return by_group(layer, gradient), windows(layer, padded, gradient.shape[2:])


@product_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def conv_transpose_weight(layer: nn.ConvTranspose2d, activations: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    # The transposed convolution is a convolution from the output back to the input: exchange the roles.
    padded = F.pad(gradient, layer._reversed_padding_repeated_twice)
    return by_group(layer, activations.to(gradient.dtype)), windows(layer, padded, activations.shape[2:])


def embedding_factors(layer: nn.Embedding, ids: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids (N, T) and the output gradient (N, T, D) as far as it counts."""
    ids, gradient = ids.reshape(len(ids), -1), wide(gradient).reshape(len(ids), -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        gradient = gradient * (ids != layer.padding_idx).unsqueeze(2)
    if layer.scale_grad_by_freq:  # torch divides by how often the token stands in the batch
        counts = gradient.new_zeros(layer.num_embeddings)
        counts.index_add_(0, ids.flatten(), gradient.new_ones(ids.numel()))
        gradient = gradient / counts[ids].unsqueeze(2)
    return ids, gradient


def embedding_squared_norm(layer: nn.Embedding, ids: Tensor, gradient: Tensor) -> Tensor:
    if not gram_is_cheaper(prod(ids.shape[1:]), layer.num_embeddings, layer.embedding_dim):
        return sum_of_squares(embedding_weight(layer, ids, gradient))
    ids, gradient = embedding_factors(layer, ids, gradient)
    # An embedding is a linear layer over one-hot tokens, whose products are 1 where tokens are equal.
    same = ids.unsqueeze(1) == ids.unsqueeze(2)
    return ((gradient @ gradient.mT) * same).sum((1, 2))


@rule("weight", nn.Embedding, squared_norm=embedding_squared_norm)
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
    # Not widened before: without an eps of its own, the layer takes that of the input's precision.
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
