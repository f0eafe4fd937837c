"""Each row's share of the batch gradient over all parameters, from one forward and one backward.

The backward computes the gradients at the layers' outputs only, never the weights' own: rules
(``layer_rules``) turn those into each row's share, one parameter after the other. The shares of
all rows add up to the gradient of the summed losses; where no layer mixes rows, a row's share is
its own gradient. ``loss(outputs, targets)`` returns one loss per row. The network runs in the mode
it is in; its ``.grad`` fields stay as they are::

    rows = row_pass(network, loss, inputs, targets)
    norms = rows.norms()  # (N,)
    gram = sum(share.flatten(1) @ share.flatten(1).T for _, share in rows.by_parameter())

If a parameter is used outside of a layer with a rule (attention, recurrence, a parameter of a
custom module), the rows run one by one instead; a network that mixes rows cannot do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from gradsieve.errors import InputError
from gradsieve.ranks import world_size
from gradsieve.scores.layer_calls import LayerCall, not_by_rows, parameters_by_row, recorded_calls, used_outside
from gradsieve.scores.layer_rules import RULES, Measured, Rule
from gradsieve.scores.outer_products import sum_of_rows, sum_of_squares, wide
from gradsieve.scores.outputs import one_tensor
from gradsieve.scores.row_by_row import RowLoss, mixes_rows, rows_apart


class LayerUse(NamedTuple):
    """A parameter in one call of its layer."""

    layer: nn.Module
    parameter: str
    activations: Tensor
    output_gradient: Tensor

    @property
    def rule(self) -> Rule:
        return RULES[type(self.layer)][self.parameter]

    def share(self) -> Tensor:  # (N, *parameter.shape)
        with plain_arithmetic(self.activations):
            return self.rule.share(self.layer, self.activations, self.output_gradient)

    def measure(self, hold: bool) -> Measured:
        with plain_arithmetic(self.activations):
            return self.rule.measure(self.layer, self.activations, self.output_gradient, hold)

    def total(self, rows: Tensor) -> Tensor:  # the sum of the shares of some rows: parameter.shape
        with plain_arithmetic(self.activations):
            return self.rule.total(self.layer, self.activations[rows], self.output_gradient[rows])


class KnownShare(NamedTuple):
    """A share that is already computed: a small one, one held by `measure`, 0 of an unused parameter, or one of rows
    run one by one."""

    gradient: Tensor  # (N, *parameter.shape)

    def share(self) -> Tensor:
        return self.gradient

    def measure(self, hold: bool) -> Measured:
        return Measured(sum_of_squares(wide(self.gradient)))

    def total(self, rows: Tensor) -> Tensor:
        return sum_of_rows(self.gradient, rows)


class JoinedShares(NamedTuple):
    """The shares of several small parameters in one tensor, measured and added up together: a compiler would make
    kernels for each that have too little to do."""

    shapes: Mapping[str, torch.Size]  # of the parameters
    gradients: Tensor  # (N, values of them all)

    def by_parameter(self, values: Tensor) -> Iterator[tuple[str, Tensor]]:  # (..., values) -> (..., *parameter.shape)
        pieces = values.split([shape.numel() for shape in self.shapes.values()], -1)
        for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True):
            yield name, piece.reshape(*values.shape[:-1], *shape)


@contextmanager
def plain_arithmetic(like: Tensor) -> Iterator[None]:
    """Without a graph, and without autocast."""
    with torch.no_grad(), torch.autocast(like.device.type, enabled=False):
        yield


@dataclass(frozen=True)
class RowPass:
    """One pass over a batch, from which the rows' gradients can be taken."""

    outputs: Tensor  # (N, ...), cut from the graph
    losses: Tensor  # (N,), likewise
    uses: Mapping[str, Sequence[LayerUse | KnownShare]]  # of every trainable parameter that is not joined
    joined: JoinedShares | None = None
    unused: frozenset[str] = frozenset()  # those that the losses do not depend on

    def by_parameter(self) -> Iterator[tuple[str, Tensor]]:
        """Each trainable parameter's name and shares (N, *parameter.shape), built one at a time."""
        for name, uses in self.uses.items():
            yield name, added([use.share() for use in uses])
        if self.joined is not None:
            yield from self.joined.by_parameter(self.joined.gradients)

    def norms(self) -> Tensor:
        """The L2 norm of each row's share over all trainable parameters: (N,)."""
        return self.measure(hold=False)[0]

    def measure(self, hold: bool = True) -> tuple[Tensor, RowPass]:
        """The norms, and this pass with the shares that were computed on the way, which make ``gradient`` cheaper."""
        found = {
            # Several uses of a parameter (tied weights, a layer called twice) add up before the norm is taken.
            name: uses[0].measure(hold)
            if len(uses) == 1
            else Measured(sum_of_squares(added([u.share() for u in uses])))
            for name, uses in self.uses.items()
        }
        parts = [measured.squared_norm for measured in found.values()]
        if self.joined is not None:
            parts.append(sum_of_squares(self.joined.gradients))
        squares = torch.stack(parts).sum(0)
        held = {name: [KnownShare(each.shares)] for name, each in found.items() if each.shares is not None}
        # Rounding can leave a Gram sum below 0.
        return squares.clamp(min=0).sqrt(), replace(self, uses={**self.uses, **held})

    def gradient(self, rows: Tensor) -> dict[str, Tensor]:
        """The sum over some ``rows`` of their shares, by name of the parameter that is used.

        Where no layer mixes rows, this is the gradient of the sum of those rows' losses.
        """
        used = {name: uses for name, uses in self.uses.items() if name not in self.unused}
        totals = {name: added([use.total(rows) for use in uses]) for name, uses in used.items()}
        if self.joined is not None:
            totals.update(self.joined.by_parameter(sum_of_rows(self.joined.gradients, rows)))
        return totals


def added(tensors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)


def row_gradient_norms(network: nn.Module, loss: RowLoss, inputs: Tensor, targets: Tensor) -> Tensor:
    """The L2 norm over all trainable parameters of each row's share of the gradient: (N,)."""
    return row_pass(network, loss, inputs, targets).norms()


def row_gradients(network: nn.Module, loss: RowLoss, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Each row's share of the gradient, by name of the trainable parameter: (N, *parameter.shape)."""
    return dict(row_pass(network, loss, inputs, targets).by_parameter())


def row_pass(network: nn.Module, loss: RowLoss, inputs: Tensor, targets: Tensor) -> RowPass:
    """Run the batch forward and backward once, and keep what the rows' gradients are computed from."""
    check_module(network)
    trainable = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if not len(inputs) and world_size() > 1:
        return no_rows(trainable)
    # An earlier pass under no_grad may have left cached casts of the weights, which have no graph.
    torch.clear_autocast_cache()
    with torch.enable_grad():
        with parameters_by_row(network, inputs) as by_row, recorded_calls(network) as calls:
            outputs = one_tensor(network(inputs))
        check_outputs(outputs)
        exit_node = get_gradient_edge(outputs).node  # before a loss that works in place
        losses = loss(outputs, targets)
        check_losses(losses, inputs)
        obstacle = find_obstacle(network, inputs, losses, calls, trainable)
    if obstacle:
        check_rows_can_run_apart(network, losses, exit_node, trainable, obstacle)
        apart = rows_apart(network, loss, inputs, targets)
        known = {name: [KnownShare(wide(gradient))] for name, gradient in apart.gradients.items()}
        return RowPass(apart.outputs, apart.losses, known)
    with torch.autocast(inputs.device.type, enabled=False):
        # Autograd skips the weights' gradients if only those at the outputs are asked for.
        edges = [*(call.output for call in calls), *map(get_gradient_edge, by_row.values())]
        gradients = torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True)
    uses = collect_uses(trainable, calls, gradients[: len(calls)], len(inputs))
    shares = {name: each for name, each in zip(by_row, gradients[len(calls) :], strict=True) if each is not None}
    uses = {name: own for name, own in uses.items() if name not in shares}
    unused = frozenset(name for name in uses if not uses[name])
    for name in unused:
        uses[name] = [KnownShare(wide(trainable[name].new_zeros(())).expand(len(inputs), *trainable[name].shape))]
    return RowPass(outputs.detach(), losses.detach(), uses, joined(shares), unused)


def joined(shares: Mapping[str, Tensor]) -> JoinedShares | None:
    """Shares (N, *parameter.shape) side by side."""
    if not shares:
        return None
    shapes = {name: share.shape[1:] for name, share in shares.items()}
    return JoinedShares(shapes, torch.cat([wide(share).flatten(1) for share in shares.values()], 1))


def no_rows(trainable: Mapping[str, Tensor]) -> RowPass:
    """The pass of a rank without rows, whose sums add nothing to those of the others."""
    uses = {name: [KnownShare(wide(each.detach().new_zeros(0, *each.shape)))] for name, each in trainable.items()}
    losses = next(iter(trainable.values())).detach().new_zeros(0)
    return RowPass(losses, losses, uses)


def store_gradient(network: nn.Module, gradient: Mapping[str, Tensor]) -> None:
    """Add a gradient to the ``.grad`` fields, as a backward pass would."""
    for name, parameter in network.named_parameters():
        if name in gradient:  # a backward pass leaves the others without a gradient too
            # In the parameter's memory layout, which fused optimizers want.
            own = torch.empty_like(parameter, requires_grad=False).copy_(gradient[name])
            parameter.grad = own if parameter.grad is None else parameter.grad + own


def check_module(network: nn.Module) -> None:
    """Refuse what torch cannot run with other parameters or buffers than its own."""
    if isinstance(network, nn.DataParallel):
        raise InputError(
            "network is a DataParallel, whose replicas keep the rows' gradients to themselves. Give network.module, on "
            "one GPU; or train with one process for each (docs/many-ranks.md)."
        )
    if isinstance(network, torch.jit.ScriptModule):
        raise InputError("network is compiled by torch.jit, which hides its layers. Give the module it was made from.")


def check_outputs(outputs: Tensor) -> None:
    """Raise if the outputs depend on no trainable parameter."""
    if not outputs.requires_grad:
        raise InputError(
            "The outputs do not depend on any trainable parameter of the network, so there is no gradient. "
            "Unfreeze a parameter, and call outside torch.inference_mode (torch.no_grad does no harm)."
        )


def check_losses(losses: Tensor, inputs: Tensor) -> None:
    """Raise unless there is one loss for each row, and at least one row."""
    if losses.shape != inputs.shape[:1] or not len(inputs):
        raise InputError(
            f"loss(outputs, targets) has the shape {tuple(losses.shape)} for inputs of the shape "
            f"{tuple(inputs.shape)}, but must give one loss per row. Set its reduction to 'none'."
        )
    if not losses.requires_grad:
        raise InputError("The losses do not depend on the outputs: loss(outputs, targets) must not detach them.")


def find_obstacle(
    network: nn.Module, inputs: Tensor, losses: Tensor, calls: list[LayerCall], trainable: Mapping[str, Tensor]
) -> str | None:
    """Why the recorded calls do not give the shares, in words; None when they do."""

    def words(module: nn.Module) -> str:
        name = next(name for name, candidate in network.named_modules() if candidate is module)
        return f"module {name!r} ({type(module).__name__})"

    # The search steps over a recorded call, from its output to its input: the rule covers what is inside.
    for parameter in used_outside(losses, {call.output.node: call.sources for call in calls}, trainable):
        path, _, own_name = parameter.rpartition(".")
        return f"{own_name} of {words(network.get_submodule(path))} is used otherwise than in a layer with a rule"
    for layer in not_by_rows(network, inputs, losses, calls):
        return f"{words(layer)} is called with something else than one entry per row, in their order"
    for call in calls:
        if call.activations._version != call.version:
            return f"the input of {words(call.layer)} was changed in place after the layer read it"
    return None


def check_rows_can_run_apart(
    network: nn.Module, losses: Tensor, exit_node: Node, trainable: Mapping[str, Tensor], obstacle: str
) -> None:
    """Raise if rows that run one by one would have other gradients than in the batch."""
    for parameter in used_outside(losses, {exit_node: []}, trainable):
        raise InputError(
            f"loss(outputs, targets) uses the parameter {parameter} itself, and not only the outputs. Leave a "
            "penalty on parameters to the optimiser (weight_decay): it belongs to no row."
        )
    if mixes_rows(network):
        raise InputError(
            f"The gradients of the rows cannot be told apart: {obstacle}, and with BatchNorm in train form the rows "
            "cannot run one by one. Score in eval form (network.eval()), or give the layer a rule "
            "(gradsieve.scores.layer_rules.rule)."
        )


def collect_uses(
    trainable: dict[str, nn.Parameter], calls: list[LayerCall], gradients: Sequence[Tensor | None], rows: int
) -> dict[str, list[LayerUse | KnownShare]]:
    """The uses of each trainable parameter."""
    names = {id(parameter): name for name, parameter in trainable.items()}  # tied parameters are one object
    uses: dict[str, list[LayerUse | KnownShare]] = {name: [] for name in trainable}
    for call, gradient in zip(calls, gradients, strict=True):
        if gradient is not None:
            for own_name, parameter in call.layer.named_parameters(recurse=False):
                if parameter.requires_grad:
                    use = LayerUse(call.layer, own_name, call.activations, gradient)
                    # A share no larger than its factors is built at once. That frees memory, and later a
                    # BatchNorm layer may be in another form, with other statistics.
                    small = rows * parameter.numel() <= gradient.numel() and not use.rule.has_shortcut
                    uses[names[id(parameter)]].append(KnownShare(use.share()) if small else use)
    return uses
