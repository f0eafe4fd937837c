"""Other implementations of the same steps, to time beside ours.

The authors' PRL(L) is a rewrite of what their code does: a forward in train mode to score, sorting on the host, and a
new forward over the kept rows. Opacus and ``torch.func`` give per-row gradients or their norms; PRL(G) is built on
them in the cheapest way they allow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gradsieve.experiments.workloads import Setup, Workload
from gradsieve.scores.loss import row_losses
from gradsieve.scores.row_by_row import mixes_rows
from gradsieve.selection import keep_smallest

Step = Callable[[], None]


@dataclass(frozen=True)
class Peer:
    """Another implementation of a method's step."""

    make: Callable[[Workload, Setup, float], Step]
    needs: str = ""  # a library that may not be installed
    mixed_rows: bool = False  # whether it supports BatchNorm

    def obstacle(self, network: nn.Module) -> str | None:
        """Why it cannot be measured here; None if it can."""
        if self.needs and find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        if not self.mixed_rows and mixes_rows(network):
            return "BatchNorm mixes rows, which have no gradients of their own"
        return None


def authors_prl_l(workload: Workload, setup: Setup, drop_rate: float) -> Step:
    """PRL(L) as in the authors' code. (That is for classification only; squared error is added by analogy.)"""
    (network,), (optimizer,) = setup.networks, setup.optimizers
    count = int((1 - drop_rate) * workload.batch_size)

    def step() -> None:
        outputs = network(setup.inputs)  # as they do: with autograd, and updating BatchNorm's statistics
        if workload.task == "classification":
            wanted = nn.functional.one_hot(setup.targets, workload.outputs)
            scores = (outputs.float().softmax(1) - wanted).square().sum(1)
        else:
            scores = (outputs.float() - setup.targets).square().sum(1)
        order = np.argsort(scores.detach().cpu().numpy())
        kept = torch.from_numpy(order[:count].copy()).to(setup.inputs.device)
        loss = workload.criterion(network(setup.inputs[kept]), setup.targets[kept])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@contextmanager
def quiet_hooks() -> Iterator[None]:
    """Silence torch's warning that the first layer's input needs no gradient, which is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def opacus_prl_g(workload: Workload, setup: Setup, drop_rate: float) -> Step:
    """Opacus's hooks compute every row's gradient; the update is their mean over the kept rows."""
    (network,), (optimizer,) = setup.networks, setup.optimizers
    watched: Any = import_module("opacus").GradSampleModule(network, loss_reduction="sum")
    parameters: list[Any] = list(network.parameters())

    def step() -> None:
        with quiet_hooks():
            row_losses(workload.criterion, watched(setup.inputs), setup.targets).sum().backward()
        squares = [parameter.grad_sample.flatten(1).float().square().sum(1) for parameter in parameters]
        kept = keep_smallest(torch.stack(squares).sum(0).sqrt(), drop_rate)
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter).copy_(parameter.grad_sample[kept].mean(0))
            parameter.grad_sample = None
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus_ghost_prl_g(workload: Workload, setup: Setup, drop_rate: float) -> Step:
    """Opacus's ghost norms, then a second backward through the same graph, as in its fast gradient clipping."""
    (network,), (optimizer,) = setup.networks, setup.optimizers
    make: Any = import_module("opacus.grad_sample").GradSampleModuleFastGradientClipping
    watched = make(network, loss_reduction="sum", use_ghost_clipping=True)

    def step() -> None:
        losses = row_losses(workload.criterion, watched(setup.inputs), setup.targets)
        with quiet_hooks():
            losses.sum().backward(retain_graph=True)
            kept = keep_smallest(watched.get_norm_sample(), drop_rate)
            optimizer.zero_grad()
            watched.disable_hooks()
            losses[kept].mean().backward()
            watched.enable_hooks()
        optimizer.step()

    return step


def func_prl_g(workload: Workload, setup: Setup, drop_rate: float) -> Step:
    """``vmap(grad(...))`` gives every row's gradient; the update is their mean over the kept rows."""
    (network,), (optimizer,) = setup.networks, setup.optimizers
    parameters = dict(network.named_parameters())

    def loss(values: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(network, values, (row.unsqueeze(0),))
        return row_losses(workload.criterion, outputs, target.unsqueeze(0)).sum()

    by_row = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step() -> None:
        values = {name: parameter.detach() for name, parameter in parameters.items()}
        gradients = by_row(values, setup.inputs, setup.targets)
        squares = [gradient.flatten(1).float().square().sum(1) for gradient in gradients.values()]
        kept = keep_smallest(torch.stack(squares).sum(0).sqrt(), drop_rate)
        for name, parameter in parameters.items():
            parameter.grad = torch.empty_like(parameter).copy_(gradients[name][kept].mean(0))
        optimizer.step()

    return step


PEERS = {
    "authors: prl-l": Peer(authors_prl_l, mixed_rows=True),
    "opacus: prl-g": Peer(opacus_prl_g, "opacus"),
    "opacus ghost: prl-g": Peer(opacus_ghost_prl_g, "opacus"),
    "torch.func: prl-g": Peer(func_prl_g),
}
