"""Which layers a forward pass called, and whether they account for the whole gradient.

Forward hooks record each call's input, and the edge of the graph that the gradient at its output
passes. A silent wrong answer would be the worst outcome, so three things are checked: in the graph,
whether a parameter reaches the losses in any other way, and whether the rows stay in their order;
and by a batch of another size, whether the first dimension of a layer's input is really the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.func import functional_call

from gradsieve.errors import InputError
from gradsieve.scores.layer_rules import has_rule


class LayerCall(NamedTuple):
    """One call of a layer that has a rule."""

    layer: nn.Module
    activations: Tensor  # the input, cut from the graph: (N, ...)
    version: int  # of the input when the layer read it: it changes when the input does
    sources: list[Node]  # the nodes of the graph that made the inputs
    output: GradientEdge  # the edge that the gradient at the output passes


@contextmanager
def recorded_calls(network: nn.Module) -> Iterator[list[LayerCall]]:
    """The calls, in order, that the layers with a rule receive inside the ``with`` block."""
    calls: list[LayerCall] = []

    def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        if not output.requires_grad:  # called under no_grad: nothing flows back
            return output
        # An in-place activation moves the gradient of a view past the view's own place in the graph.
        output = output.clone() if output._is_view() else output
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        sources = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
        activations = tensors[0].detach()
        # The edge, unlike the tensor, stays the same when an in-place activation follows.
        calls.append(LayerCall(layer, activations, activations._version, sources, get_gradient_edge(output)))
        return output

    # Before any hook of the user's, which may change the output.
    handles = [
        layer.register_forward_hook(record, prepend=True, with_kwargs=True)
        for layer in network.modules()
        if has_rule(layer)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def used_outside(losses: Tensor, doors: Mapping[Node, Sequence[Node]], parameters: Mapping[str, Tensor]) -> list[str]:
    """The names of the ``parameters`` that reach ``losses`` by a path around the ``doors``.

    A door is a node of the graph with the nodes at which the search goes on behind it. With the recorded calls as
    doors, this finds a functional use of a layer's weight, a parameter of a custom module, attention and recurrence.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: list[str] = []
    seen: set[Node] = set()
    ahead: list[Node | None] = [losses.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise InputError(
                "A part of the network runs under torch.utils.checkpoint with use_reentrant=True, which hides its "
                "parameters until the backward pass: rows' gradients would go without them. Pass use_reentrant=False."
            )
        name = names.get(id(getattr(node, "variable", None)))  # the leaves of the graph hold their tensor
        if name is not None:
            found.append(name)
        ahead.extend(doors[node] if node in doors else (node for node, _ in node.next_functions))
    return sorted(found, key=list(parameters).index)


_ROWS_FIRST: WeakSet[nn.Module] = WeakSet()
_IN_ORDER: WeakSet[nn.Module] = WeakSet()
ENOUGH_ROWS = 8  # so many rows are hardly in order by chance


def not_by_rows(network: nn.Module, inputs: Tensor, losses: Tensor, calls: Sequence[LayerCall]) -> set[nn.Module]:
    """The called layers whose input does not hold one entry per row, in the rows' order, in its first dimension.

    A table of position embeddings called with 64 positions has 64 entries whatever the batch, and
    looks right if the batch has 64 rows. So a layer seen for the first time is checked by a second pass.
    """
    wrong = {call.layer for call in calls if call.activations.shape[:1] != inputs.shape[:1]}
    if not wrong and network not in _IN_ORDER:
        if any(is_out_of_order(node, len(inputs)) for node in nodes_above(losses)):
            return {call.layer for call in calls}
        if len(inputs) >= ENOUGH_ROWS:
            _IN_ORDER.add(network)
    if not wrong and any(call.layer not in _ROWS_FIRST for call in calls):
        watch_rows(network, inputs)
    return wrong or {call.layer for call in calls if call.layer not in _ROWS_FIRST}


def nodes_above(losses: Tensor) -> set[Node]:
    """All nodes of the graph that made the losses."""
    seen: set[Node] = set()
    ahead = [losses.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead.extend(each for each, _ in node.next_functions)
    return seen


def is_out_of_order(node: Any, rows: int) -> bool:
    """Whether a node of the graph puts this many entries of the first dimension into another order.

    A network that sorts its rows, by length for instance, sorts its outputs back in the end, with an index.
    """
    kind = node.name().rstrip("0123456789")
    if kind in ("FlipBackward", "RollBackward"):
        return rows > 1 and 0 in node._saved_dims
    if kind in ("IndexSelectBackward", "GatherBackward"):
        index = node._saved_index if node._saved_dim == 0 else None
    else:
        index = node._saved_indices[0] if kind in ("IndexBackward", "IndexPutBackward") else None
    if index is None or index.shape[:1] != (rows,):
        return False
    return bool((index.reshape(rows, -1) != torch.arange(rows, device=index.device)[:, None]).any())


def watch_rows(network: nn.Module, inputs: Tensor) -> None:
    """Find the layers whose input has the rows first, by a pass over another number of rows than the batch has.

    It leaves buffers and random states as they were.
    """
    few = 3 if len(inputs) == 2 else 2
    rows = inputs[torch.arange(few, device=inputs.device) % len(inputs)]
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = [] if inputs.device.type == "cpu" else [inputs.device]
    with torch.random.fork_rng(devices, device_type=inputs.device.type), recorded_calls(network) as calls:
        functional_call(network, buffers, (rows,))
    wrong = {call.layer for call in calls if call.activations.shape[:1] != (few,)}
    _ROWS_FIRST.update({call.layer for call in calls} - wrong)


# Types of layers that now take parameters with a value for each row: none in torch, some while `Lowered` is active.
ROW_LAYERS: ContextVar[tuple[type[nn.Module], ...]] = ContextVar("row layers", default=())


@contextmanager
def parameters_by_row(network: nn.Module, inputs: Tensor) -> Iterator[dict[str, Tensor]]:
    """Give each row its own copy, (N, *shape), of the parameters of ``ROW_LAYERS``: the gradient of a copy is the row's
    share. Yields the copies by name; as expanded views, they take no memory."""
    owners = {name: module for name, module in network.named_modules() if type(module) in ROW_LAYERS.get()}
    if any(module not in _ROWS_FIRST for module in owners.values()):
        watch_rows(network, inputs)
    places = [
        (module._parameters, own_name, f"{path}.{own_name}".lstrip("."), parameter)
        for path, module in owners.items()
        for own_name, parameter in module._parameters.items()
        if module in _ROWS_FIRST and parameter is not None and parameter.requires_grad
    ]
    copies = {full: each.detach().expand(len(inputs), *each.shape).requires_grad_() for _, _, full, each in places}
    try:
        for parameters, own_name, full, _ in places:
            parameters[own_name] = copies[full]  # type: ignore[assignment]
        yield copies
    finally:
        for parameters, own_name, _, parameter in places:
            parameters[own_name] = parameter
