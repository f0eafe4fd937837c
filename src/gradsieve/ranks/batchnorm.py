"""BatchNorm over ranks: with the statistics of all ranks' rows, as one rank would have them, or of each rank's own.

A layer keeps its type and its names, so that state dicts, rules and eval form still fit: only its forward pass in
train form changes. (torch's SyncBatchNorm is another type, and refuses the CPU.)
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from gradsieve.ranks.collectives import sum_over_ranks
from gradsieve.ranks.group import world_size

BatchNormOver = Literal["sync", "local"]


def norm_over_ranks(network: nn.Module, over: BatchNormOver) -> None:
    """Let the BatchNorm layers of a network take their statistics over all ranks' rows, or over each rank's own."""
    for layer in batch_norms(network):
        forward = partial(forward_sync if over == "sync" else forward_local, layer)
        layer.forward = forward  # pyright: ignore[reportAttributeAccessIssue]  # of the same signature


def batch_norms(network: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]


def meets_ranks(network: nn.Module) -> bool:
    """Whether a pass through the network waits for the other ranks: then one without rows must take part in it."""
    forwards = (layer.__dict__.get("forward") for layer in batch_norms(network))
    return world_size() > 1 and any(getattr(forward, "func", None) is forward_sync for forward in forwards)


@torch.no_grad()
def average_statistics(network: nn.Module) -> None:
    """Average the running statistics of BatchNorm layers over the ranks, so that all ranks score and test alike."""
    running = [each for layer in batch_norms(network) for each in (layer.running_mean, layer.running_var)]
    statistics = [each for each in running if each is not None]
    if world_size() == 1 or not statistics:
        return
    means = sum_over_ranks(torch.cat(statistics)) / world_size()
    for own, mean in zip(statistics, means.split([len(each) for each in statistics]), strict=True):
        own.copy_(mean)


def forward_local(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """The usual forward pass; a batch too small for a variance is normalised by the running statistics."""
    values = inputs.numel() // max(1, inputs.shape[1])
    if values < 2 and layer.running_mean is not None and layer.training:
        return F.batch_norm(
            inputs, layer.running_mean, layer.running_var, layer.weight, layer.bias, False, 0.0, layer.eps
        )
    return type(layer).forward(layer, inputs)


def forward_sync(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """The forward pass with the mean and variance of all ranks' rows."""
    uses_batch = layer.training or layer.running_mean is None
    if not uses_batch or world_size() == 1:
        return type(layer).forward(layer, inputs)
    outputs, mean, variance, count = NormOverRanks.apply(inputs, layer.weight, layer.bias, layer.eps)  # pyright: ignore
    if layer.training and layer.track_running_stats and layer.running_mean is not None:
        remember(layer, mean, variance, count)
    return outputs


@torch.no_grad()
def remember(layer: _BatchNorm, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Update the running statistics as torch does."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    momentum = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        momentum = 1.0 / float(layer.num_batches_tracked) if momentum is None else momentum
    unbiased = variance * (count / (count - 1).clamp(min=1))
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), momentum or 0.0)
    layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), momentum or 0.0)


class NormOverRanks(torch.autograd.Function):
    """(inputs - mean) / deviation * weight + bias over all ranks' rows: one message forward, one backward.

    The gradients of weight and bias are those of this rank's rows: they are summed over ranks with all others.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values = wide(inputs)
        over, shape = [0, *range(2, inputs.dim())], [1, -1, *[1] * (inputs.dim() - 2)]
        count = values.new_tensor([inputs.numel() // inputs.shape[1]])
        mean = values.sum(over) / count.clamp(min=1)
        spread = (values - mean.view(shape)).square().sum(over)  # around this rank's mean: no cancellation
        own = torch.cat([count, mean, spread])
        everyone = [torch.empty_like(own) for _ in range(world_size())]
        dist.all_gather(everyone, own)
        counts, means, spreads = torch.stack(everyone).split([1, len(mean), len(mean)], dim=1)
        count = counts.sum().clamp(min=1)
        mean = (counts * means).sum(0) / count
        variance = (spreads + counts * (means - mean).square()).sum(0) / count
        deviation = (variance + eps).rsqrt()
        normal = (values - mean.view(shape)) * deviation.view(shape)
        ctx.save_for_backward(normal, weight, deviation, count)
        ctx.over, ctx.shape, ctx.dtype = over, shape, inputs.dtype
        ctx.has_bias = bias is not None
        outputs = normal if weight is None else normal * weight.view(shape)
        outputs = outputs if bias is None else outputs + bias.view(shape)
        ctx.mark_non_differentiable(mean, variance, count)
        return outputs.to(inputs.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        normal, weight, deviation, count = ctx.saved_tensors
        gradient = wide(gradients[0])
        summed, along = gradient.sum(ctx.over), (gradient * normal).sum(ctx.over)
        of_weight, of_bias = (along if weight is not None else None), (summed if ctx.has_bias else None)
        everyone = sum_over_ranks(torch.stack([summed, along]))
        mean, mean_along = ((each / count).view(ctx.shape) for each in everyone)
        scale = deviation if weight is None else deviation * weight
        of_inputs = (gradient - mean - normal * mean_along) * scale.view(ctx.shape)
        return of_inputs.to(ctx.dtype), of_weight, of_bias, None


def wide(values: Tensor) -> Tensor:
    """``values`` in single precision at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
