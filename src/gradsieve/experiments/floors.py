"""A lower bound on the time of a plain step: the matrix products of its layers alone, and how many operations they are.

The floor runs the convolutions and linear layers of one forward and backward, with the shapes and the precision of the
real step, and nothing else: no norms, activations, loss or update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gradsieve.engine.captured import capture
from gradsieve.experiments.workloads import Setup, Workload, set_up

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class Floor(NamedTuple):
    """The products of a plain step."""

    step: Callable[[], None]
    flops: int  # a forward and a backward; a multiplication with its addition counts as two


def make_floor(workload: Workload, device: torch.device) -> Floor:
    """The matrix products of a plain step on this workload."""
    setup = set_up(workload, device)
    calls = layer_calls(setup)

    def step() -> None:
        for run, wanted, output_gradient in calls:
            torch.autograd.grad(run(), wanted, output_gradient)

    return Floor(step if device.type != "cuda" else captured(step, device), count_flops(workload, setup))


def layer_calls(setup: Setup) -> list[tuple[Callable[[], Tensor], list[Tensor], Tensor]]:
    """For each call of a layer: the call on its own tensors, the tensors to differentiate by, the output's gradient."""
    calls = []

    def laid_out(maps: Tensor) -> Tensor:
        # GroupNorm does not keep the memory layout channels_last, in which convolutions are fastest.
        keeps = maps.dim() == 4 and setup.inputs.is_contiguous(memory_format=torch.channels_last)
        return maps.contiguous(memory_format=torch.channels_last) if keeps else maps

    def note(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # Autocast casts inputs and weights inside the layer. Here they are cast once, beforehand.
        own = {name: p.detach().to(output.dtype).requires_grad_() for name, p in layer.named_parameters()}
        source = laid_out(inputs[0].detach().to(output.dtype))
        wanted = list(own.values())
        if inputs[0].requires_grad:  # not in the first layer
            wanted.append(source.requires_grad_())

        def run() -> Tensor:
            return torch.func.functional_call(layer, own, (source,))

        calls.append((run, wanted, laid_out(torch.randn_like(output))))

    network = setup.networks[0]
    hooks = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, LAYERS)]
    try:
        network(setup.inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def count_flops(workload: Workload, setup: Setup) -> int:
    """The floating-point operations of the products in one forward and backward."""
    with FlopCounterMode(display=False) as counter:
        workload.criterion(setup.networks[0](setup.inputs).float(), setup.targets).backward()
    return counter.get_total_flops()


def captured(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as one CUDA graph: its time on the device, without that of launching kernels."""
    with torch.cuda.device(device):
        graph = capture(step, dict)  # it changes nothing that must be restored

    def replay(_: object = step) -> None:  # the default keeps the step's tensors alive, which the graph works on
        graph.replay()

    return replay
