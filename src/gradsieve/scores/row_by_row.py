"""Each row's own gradient, by running the network on one row at a time: slow, and good for any layer.

This is the reference for tests of ``row_gradients``, and its fallback for layers without a rule. It
cannot serve networks that mix rows: BatchNorm of one row is not that of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gradsieve.ranks.batchnorm import batch_norms

RowLoss = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> one loss per row
# parameters, a row, its target -> its loss, and what it gave
Run = Callable[[dict[str, Tensor], Tensor, Tensor], tuple[Tensor, tuple[Tensor, Tensor]]]


class RowsApart(NamedTuple):
    """The results of the rows when each is run alone."""

    gradients: dict[str, Tensor]  # of each trainable parameter: (N, *parameter.shape)
    outputs: Tensor  # (N, ...)
    losses: Tensor  # (N,)


def mixes_rows(network: nn.Module) -> bool:
    """Whether a row's output depends on the other rows: BatchNorm in train form or without running statistics.

    A custom module that mixes rows in another way is not recognised.
    """
    return any(layer.training or layer.running_mean is None for layer in batch_norms(network))


def rows_apart(network: nn.Module, loss: RowLoss, inputs: Tensor, targets: Tensor) -> RowsApart:
    """Run each row alone: all at once if vmap can trace the network, else in a loop.

    Each row has its own copy of the buffers, so those of the network do not change.
    """
    trainable = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}

    def run(values: dict[str, Tensor], row: Tensor, target: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        outputs = functional_call(network, values | buffers, (row.unsqueeze(0),))
        row_loss = loss(outputs, target.unsqueeze(0)).sum()
        return row_loss, (outputs.squeeze(0), row_loss)

    one_row = grad(run, has_aux=True)
    try:
        gradients, (outputs, losses) = vmap(one_row, in_dims=(None, 0, 0), randomness="different")(
            trainable, inputs, targets
        )
    except RuntimeError:  # torch's GRU and RNN, in-place writes, branches on values, gradients in a forward pass
        rows = [by_backward(run, trainable, row, target) for row, target in zip(inputs, targets, strict=True)]
        gradients = {name: torch.stack([row[0][name] for row in rows]) for name in trainable}
        outputs, losses = (torch.stack([row[1][i] for row in rows]) for i in range(2))
    return RowsApart(gradients, outputs.detach(), losses.detach())


def by_backward(
    run: Run, trainable: Mapping[str, Tensor], row: Tensor, target: Tensor
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """One row by an ordinary backward pass, which can follow whatever a training loop can."""
    values = {name: value.detach().requires_grad_() for name, value in trainable.items()}
    with torch.enable_grad():
        loss, found = run(values, row, target)
    gradients = torch.autograd.grad(loss, [*values.values()], materialize_grads=True)
    return dict(zip(values, gradients, strict=True)), tuple(each.detach() for each in found)
