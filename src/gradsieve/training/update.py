"""The update of a run's networks on one batch: the only place where their weights change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.method import Method, Selection

Step = Callable[[Sequence[nn.Module], Tensor, Tensor, float], list[Selection]]


def update(
    method: Method,
    networks: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    inputs: Tensor,
    targets: Tensor,
    drop_rate: float,
    step: Step | None = None,
) -> list[Selection]:
    """Train each network on the rows that the method keeps. ``step`` replaces ``method.step`` by a compiled one."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    selections = (step or method.step)(networks, inputs, targets, drop_rate)
    ranks.sum_gradients(networks)
    for network, optimizer in zip(networks, optimizers, strict=True):
        method.finish(network)
        optimizer.step()
    return selections
