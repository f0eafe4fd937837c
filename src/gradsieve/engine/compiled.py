"""Parts of a step as compiled programs, one for each shape of their inputs.

Tracing records everything that Python decides on the way: hooks, autocast, train or eval form, and the backward pass
too. So a method's step is one graph from the batch to the gradients, in which the compiler fuses scores, selection and
losses with their neighbours. Compiling takes seconds; torch caches the result on disk.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gradsieve.counts import keep_count
from gradsieve.method import Method, Selection

OPTIONS: dict[str, Any] = {
    # One launch for small kernels that are independent of each other: casts of weights, counters, statistics.
    "combo_kernels": True,
    # The compiler's default loads 16 bytes at a time. Autotuning can pick a worse choice for a kernel that works in
    # place, because it also times the copy that saves its memory: that cost half of the speed on large maps.
    "triton.autotune_pointwise": False,
}


class Programs:
    """Compiled programs by what they were made for, and the seconds that making them took."""

    def __init__(self, compile: Callable[[torch.fx.GraphModule], Callable[..., Any]] | None = None) -> None:
        self.compile = compile or partial(torch.compile, dynamic=False, options=OPTIONS)
        self.made: dict[Hashable, Callable[..., Any]] = {}
        self.seconds = 0.0

    @torch.no_grad()
    def run(self, key: Hashable, function: Callable[..., Any], *tensors: Any) -> Any:
        """``function(*tensors)``, compiled at its first call under this key with tensors of such shapes.

        The function may change its tensors in place. ``key`` stands for all else that it depends on.
        """
        signature = (key, *map(described, tensors))
        program = self.made.get(signature)
        if program is not None:
            return program(*tensors)
        start = time.monotonic()
        traced = trace(function, *tensors)
        share_casts(traced)
        program = self.made[signature] = self.compile(traced)
        result = program(*tensors)
        self.seconds += time.monotonic() - start
        return result


def trace(function: Callable[..., Any], *tensors: Any) -> torch.fx.GraphModule:
    """The graph of all operations that ``function`` runs on such tensors, with those of its backward passes."""
    from torch.fx.experimental.proxy_tensor import make_fx  # the compiler takes seconds to import

    from gradsieve.engine.lowering import Lowered

    with Lowered(), torch.enable_grad():
        return make_fx(function, tracing_mode="fake")(*tensors)


def share_casts(traced: torch.fx.GraphModule) -> None:
    """Cast a weight once if several passes over a network would each cast it."""
    changed = changed_nodes(traced.graph)
    first: dict[Hashable, torch.fx.Node] = {}
    for node in list(traced.graph.nodes):
        if node.target is torch.ops.aten._to_copy.default and node.args[0].op == "placeholder":
            key = node.args[0], tuple(sorted((name, str(value)) for name, value in node.kwargs.items()))
            if node.args[0] not in changed and first.setdefault(key, node) is not node:
                node.replace_all_uses_with(first[key])
                traced.graph.erase_node(node)
    traced.recompile()


def changed_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that operations write to, and those of which these are a part or a view."""
    changed: set[torch.fx.Node] = set()
    waiting = [written for node in graph.nodes for written in written_by(node)]
    while waiting:
        node = waiting.pop()
        if node not in changed:
            changed.add(node)
            waiting += node.all_input_nodes if is_view(node) else []
    return changed


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that an operation changes in place; a list may hold them."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = node.target._schema.arguments
    values = {**{argument.name: value for argument, value in zip(arguments, node.args, strict=False)}, **node.kwargs}
    written = [values.get(each.name) for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    return [each for each in tree_leaves(written) if isinstance(each, torch.fx.Node)]


def is_view(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    return any(each.alias_info is not None for each in node.target._schema.returns)


def described(value: Any) -> Hashable:
    """What a program depends on: a tensor's shape, layout and type, not its values."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    return tuple(map(described, value)) if isinstance(value, list | tuple) else value


def compiled_step(
    programs: Programs,
    method: Method,
    networks: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    drop_rate: float,
) -> list[Selection]:
    """``method.step``, as one program: the gradients are left in ``.grad``, in place of what was there."""
    parameters = [dict(network.named_parameters()) for network in networks]
    values = [own | dict(network.named_buffers()) for own, network in zip(parameters, networks, strict=True)]

    def step(tensors: list[list[Tensor]], inputs: Tensor, targets: Tensor) -> Any:
        with ExitStack() as stack:
            for network, names, own in zip(networks, values, tensors, strict=True):
                stack.enter_context(swapped(network, dict(zip(names, own, strict=True))))
                network.zero_grad()
            selections = method.step(networks, inputs, targets, drop_rate)
            gradients = [[parameter.grad for parameter in network.parameters()] for network in networks]
        return gradients, [tuple(selection) for selection in selections]

    forms = tuple(module.training for network in networks for module in network.modules())
    # A step depends on the rate only by the number of rows kept: rates that keep as many share a program.
    key = "step", method, tuple(map(id, networks)), forms, keep_count(drop_rate, len(targets))
    gradients, selections = programs.run(key, step, [list(own.values()) for own in values], inputs, targets)
    for own, found in zip(parameters, gradients, strict=True):
        for parameter, gradient in zip(own.values(), found, strict=True):
            parameter.grad = gradient if gradient is None else laid_out_as(parameter, gradient)
    return [Selection(*selection) for selection in selections]


def laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in its parameter's memory layout, which fused optimizers want."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


@contextmanager
def swapped(network: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """A network with other tensors for its parameters and buffers."""
    places = []
    for path, module in network.named_modules():
        for own in (module._parameters, module._buffers):
            places += [(own, name, f"{path}.{name}".lstrip("."), value) for name, value in own.items()]
    by_tensor = {id(value): values[full] for _, _, full, value in places if full in values}  # tied ones have one name
    for own, name, _, value in places:
        own[name] = by_tensor.get(id(value), value)  # type: ignore[assignment]
    try:
        yield
    finally:
        for own, name, _, value in places:
            own[name] = value  # type: ignore[assignment]
