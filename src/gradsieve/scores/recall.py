"""A pass that scores a batch, and a second one over the kept rows that reuses the layers' outputs from the first.

If a layer does not mix rows, is not random and does the same in train and eval form, the first pass already has its
output for each kept row. So the second pass multiplies nothing: it picks the kept rows' outputs of the linear layers
and convolutions, and builds the graph for the backward pass on the way. That saves a forward pass over the kept rows,
about a sixth of a step. It covers a chain of layers up to the first of another kind (dropout, BatchNorm, a custom
module); from there on the second pass is an ordinary one::

    first = first_pass(network, inputs, "eval")
    rows = keep_smallest(loss_gradient_norm(criterion, first.outputs, targets), drop_rate)
    criterion(first.again(rows), targets[rows]).backward()
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradsieve.scores.form import Scoring, scoring_form
from gradsieve.scores.outputs import one_tensor
from gradsieve.tracing import compares_pairs, is_traced

CONVOLUTIONS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}  # with their spatial dimensions
# Layers that compute each row alone, and the same in train and eval form. Exact types: a subclass may do anything.
ROW_BY_ROW = (
    *(nn.Identity, nn.GroupNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class FirstPass:
    """A pass over a whole batch without a graph, and what the second pass reuses of it."""

    inputs: Tensor
    outputs: Tensor
    known: Sequence[nn.Module]  # the first layers, whose outputs are reused
    rest: Sequence[nn.Module]  # the layers after them
    products: Sequence[Tensor]  # (N, ...) each: the outputs of the linear layers and convolutions among ``known``

    def again(self, rows: Tensor) -> Tensor:
        """The outputs of some rows, in the form that the network is in now, with the graph of those rows alone."""
        values = take(self.inputs, rows)
        products = iter(self.products)
        for layer in self.known:
            if is_product(layer):
                values = Recalled.apply(values, layer.weight, layer.bias, layer, next(products), rows)
            else:
                values = layer(values)
        for layer in self.rest:
            values = layer(values)
        return values


def first_pass(network: nn.Module, inputs: Tensor, form: Scoring) -> FirstPass:
    """Run a batch without a graph, in eval or train form, and leave no trace in the network."""
    layers, known, products, values = chain(network), 0, [], inputs
    with torch.no_grad():
        # On a CPU alone: on a GPU the launches of the small copies cost more than the products that they save.
        if inputs.device.type == "cpu" and not is_traced(inputs) and not torch.is_autocast_enabled("cpu"):
            while known < len(layers) and is_known(layers[known], values):
                values = layers[known](values)
                if is_product(layers[known]):
                    products.append(values)
                known += 1
        if products and known < len(layers) and is_part_of(values, products[-1]):
            values = values.clone()  # the next layer may write to it, and the second pass needs the product
        with scoring_form(network, form) if known < len(layers) else nullcontext():
            for layer in layers[known:]:
                values = layer(values)
    if len(products) < 2 and known < len(layers):  # little to gain: BatchNorm follows the first layer, say
        known, products = 0, []
    return FirstPass(inputs, one_tensor(values), layers[:known], layers[known:], products)


class Recalled(torch.autograd.Function):
    """A linear layer or convolution whose output is known. The backward is the usual one."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None, layer: Any, product: Tensor, rows: Tensor
    ) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.layer = layer
        return take(product, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (values, weight), layer = gradients, ctx.saved_tensors, ctx.layer
        wanted = ctx.needs_input_grad[:3]
        if type(layer) is nn.Linear:
            flat = gradient.flatten(0, -2)
            found = (
                gradient @ weight if wanted[0] else None,
                flat.t() @ values.flatten(0, -2) if wanted[1] else None,
                flat.sum(0) if wanted[2] else None,
            )
        else:
            shape = None if layer.bias is None else list(layer.bias.shape)
            place = (layer.stride, layer.padding, layer.dilation, False, layer.output_padding, layer.groups)
            found = torch.ops.aten.convolution_backward(gradient, values, weight, shape, *place, wanted)
        return *found, None, None, None


def take(values: Tensor, rows: Tensor) -> Tensor:
    """``values[rows]`` for ascending rows, without a copy if these are all rows.

    ``index_select`` takes a fraction of the time, since it copies whole rows, but loses the layout channels_last.
    """
    if len(rows) == len(values):
        return values
    if values.requires_grad and compares_pairs(values):
        return Taken.apply(values, rows)  # pyright: ignore[reportReturnType]
    return values.index_select(0, rows) if values.is_contiguous() else values[rows]


class Taken(torch.autograd.Function):
    """``values[rows]`` for ascending, distinct rows. Its backward is a lookup for each row, which a compiler can fuse;
    the usual backward adds to rows in a fixed order, which it cannot."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = len(values)
        return values[rows]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (rows,) = gradients, ctx.saved_tensors
        row = torch.arange(ctx.count, device=rows.device)
        place = (rows < row[:, None]).sum(1).clamp(max=len(rows) - 1)
        was_taken = (rows[place] == row).view(-1, *[1] * (gradient.dim() - 1))
        return gradient[place].where(was_taken, 0), None


class Shielded(torch.autograd.Function):
    """The identity, but only the kept rows get a gradient: that of a broken row would be NaN, as 0 times NaN."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, is_kept: Tensor) -> Tensor:
        ctx.save_for_backward(is_kept)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (is_kept,) = gradients, ctx.saved_tensors
        return gradient.where(is_kept.view(-1, *[1] * (gradient.dim() - 1)), 0), None


def chain(module: nn.Module) -> list[nn.Module]:
    """The layers that a module calls one after the other: those of nested Sequentials, else the module itself."""
    if type(module) is not nn.Sequential or is_altered(module):
        return [module]
    return [layer for child in module for layer in chain(child)]


def is_known(layer: Any, values: Tensor) -> bool:
    """Whether a layer computes each row of ``values`` alone, the same in either form, not randomly and not in place."""
    if is_altered(layer) or getattr(layer, "inplace", False):
        return False
    kind = type(layer)
    if kind is nn.Linear:
        return values.dim() > 1
    if kind in CONVOLUTIONS:
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return plain and values.dim() == CONVOLUTIONS[kind] + 2
    if kind is nn.Flatten:
        return layer.start_dim == 1
    if kind is nn.LayerNorm:
        return len(layer.normalized_shape) < values.dim()
    return kind in ROW_BY_ROW


def is_part_of(values: Tensor, whole: Tensor) -> bool:
    """Whether two tensors lie in the same memory."""
    return values.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def is_product(layer: nn.Module) -> bool:
    """Whether it is a linear layer or a convolution."""
    return type(layer) is nn.Linear or type(layer) in CONVOLUTIONS


def is_altered(module: nn.Module) -> bool:
    """Whether a module has hooks or a forward of its own."""
    values = module.__dict__
    return "forward" in values or any(values.get(name) for name in HOOKS)
