"""One training step for your own model: any method, with the second pass, for one network or two.

    optimizer.zero_grad()
    selections = robust_step(model, inputs, targets, criterion=F.cross_entropy, drop_rate=0.3)
    optimizer.step()

A thin wrapper of ``Method.step``. It leaves the gradient in ``.grad``; you zero the gradients and take the optimizer
step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradsieve import ranks
from gradsieve.counts import check_rate, keep_count
from gradsieve.data.dataset import Task
from gradsieve.dropin.checks import check_untrimmed, check_weights
from gradsieve.errors import InputError
from gradsieve.method import Method, Selection, make_method
from gradsieve.methods import DEFAULT_METHOD, METHODS
from gradsieve.ranks.batchnorm import batch_norms
from gradsieve.scores.loss import Criterion, ignored_label
from gradsieve.scores.outputs import kind
from gradsieve.training.repeatable import refuse_inference_mode

UNSET = -100  # the label that torch's losses ignore unless told otherwise


@torch.enable_grad()  # whoever asks for a step wants its gradient, also where the program around needs none
def robust_step(
    models: nn.Module | Sequence[nn.Module],
    inputs: Tensor | Mapping[str, Any] | Sequence[Any],
    targets: Tensor,
    *,
    criterion: Criterion,
    drop_rate: float,
    method: str = DEFAULT_METHOD,
    task: Task | None = None,
    **options: Any,
) -> list[Selection]:
    """Leave the gradient of the rows that ``method`` keeps in ``.grad``, and return a ``Selection`` per network.

    A selection has the ``scores`` of all rows (None if the method does not rank them), the positions of the rows that
    the network ``kept``, and their mean ``loss``.

    - ``models``: one network, or the two of a co-method.
    - ``inputs``: a tensor, or several that the network takes by name (a dict) or by position (a tuple).
    - ``criterion``: as for ``RobustLoss``. The loss is the mean of its values over the kept rows: class weights
      multiply, and its ``reduction`` does not matter.
    - ``drop_rate``: the share of the rows to drop.
    - ``method``: a name that ``gradsieve list`` shows, or ``"module:Class"``.
    - ``task``: "classification" or "regression". None: integer targets are classes, floats are real values.
    - ``options``: those of the method, such as ``passes``, ``scoring``, ``balanced``.

    Rows whose label the criterion ignores are left out before anything is counted; their scores are NaN. If only one
    row is kept and the network has BatchNorm, which needs two, a single pass scores and trains.

    Under ``torch.distributed``, pass the bare network and zero its gradients before every call: there is one threshold
    over all ranks, and every rank gets the whole gradient.
    """
    refuse_inference_mode()
    networks = [models] if isinstance(models, nn.Module) else list(models)
    values = inputs if isinstance(inputs, Tensor) else row_places(inputs, targets)
    check_batch(networks, values, targets)
    check_untrimmed(criterion)
    check_weights(criterion, targets)
    drop_rate = check_rate("drop_rate", drop_rate)
    targets = targets.long() if targets.dtype == torch.uint8 else targets  # torch's own losses take these too
    task = task or ("regression" if targets.is_floating_point() else "classification")
    if task not in get_args(Task):
        raise InputError(f"task is {task!r}, but must be {' or '.join(map(repr, get_args(Task)))}.")
    rule = find_rule(method, criterion, task, options)
    if len(networks) != rule.networks:
        raise InputError(
            f"{method} trains {rule.networks} network{'s' * (rule.networks > 1)}, but models has {len(networks)}."
        )
    rows = rows_with_label(criterion, targets)
    if keep_count(drop_rate, len(values) if rows is None else len(rows)) == 1 and any(map(has_batch_norm, networks)):
        rule = in_one_pass(rule, networks)
    for network in networks:
        rule.require(network, len(values), values.device)
    readers = networks if isinstance(inputs, Tensor) else [OfRows(network, inputs) for network in networks]
    if rows is not None and not len(rows) and ranks.world_size() == 1:
        return [nothing(targets)] * len(networks)
    if rows is None:
        selections = rule.step(readers, values, targets, drop_rate)
    else:  # a row without a label has no gradient, and would be kept first
        found = rule.step(readers, values[rows], targets[rows], drop_rate)
        selections = [
            each._replace(scores=placed(each.scores, rows, len(targets)), kept=rows[each.kept]) for each in found
        ]
    ranks.sum_gradients(networks)
    for network in networks:
        rule.finish(network)
    return selections


def in_one_pass(rule: Method, networks: Sequence[nn.Module]) -> Method:
    """The method with one pass instead of two, if it has such a form for these networks."""
    try:
        shorter = replace(rule, passes="index")
        shorter.passes_of(networks)
    except InputError:
        return rule
    return shorter


def has_batch_norm(network: nn.Module) -> bool:
    """Whether a layer needs at least two rows to train."""
    return any(layer.training for layer in batch_norms(network))


class OfRows(nn.Module):
    """A network of several inputs, wrapped as a network of row numbers: methods choose the rows of one tensor."""

    def __init__(self, network: nn.Module, inputs: Mapping[str, Any] | Sequence[Any]) -> None:
        super().__init__()
        self.network, self.inputs = network, inputs
        self.training = network.training

    def forward(self, rows: Tensor) -> Any:
        def chosen(part: Any) -> Any:
            return part.index_select(0, rows) if isinstance(part, Tensor) else part

        if isinstance(self.inputs, Mapping):
            return self.network(**{name: chosen(part) for name, part in self.inputs.items()})
        return self.network(*map(chosen, self.inputs))


def find_rule(name: str, criterion: Criterion, task: Task, options: dict[str, Any]) -> Method:
    """The method, made once, because checking its options costs more than using it."""
    try:
        return _rule(name, criterion, task, tuple(sorted(options.items())))
    except TypeError:  # an argument is not hashable
        return make_rule(name, criterion, task, options)


@lru_cache(maxsize=16)
def _rule(name: str, criterion: Criterion, task: Task, options: tuple[tuple[str, Any], ...]) -> Method:
    return make_rule(name, criterion, task, dict(options))


def make_rule(name: str, criterion: Criterion, task: Task, options: dict[str, Any]) -> Method:
    rule = make_method(name, METHODS, criterion, task, options)
    if options.get("level") == "data":
        raise InputError("level='data' trims the whole set once an epoch, but a step sees a batch. Leave it out.")
    return rule


def rows_with_label(criterion: Criterion, targets: Tensor) -> Tensor | None:
    """The rows that have a label if some have none; None if all have one, or if it is not checked.

    Looking at targets on a GPU waits for it in every step, so there it needs an ``ignore_index`` set by the user.
    """
    ignored = ignored_label(criterion)
    if ignored is None or targets.is_floating_point() or (targets.is_cuda and ignored == UNSET):
        return None
    counted = targets != ignored
    counted = counted if counted.dim() == 1 else counted.flatten(1).any(1)
    return None if bool(counted.all()) else counted.nonzero().squeeze(1)


def nothing(targets: Tensor) -> Selection:
    """The selection of a batch without any label: no gradient and, as in RobustLoss, a loss of 0."""
    scores = torch.full((len(targets),), torch.nan, device=targets.device)
    return Selection(scores, targets.new_empty(0), scores.new_zeros(()))


def placed(scores: Tensor | None, rows: Tensor, count: int) -> Tensor | None:
    """Scores of some rows, put at their places among ``count`` rows; NaN for the others."""
    return None if scores is None else scores.new_full((count,), torch.nan).index_copy_(0, rows, scores)


def row_places(inputs: Any, targets: Any) -> Tensor:
    """The row numbers 0, 1, ... of a batch of several inputs, after a check that each has the rows of the targets."""
    named = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs)) if is_several(inputs) else {}
    tensors = {name: part for name, part in named.items() if isinstance(part, Tensor)}
    if not tensors:
        raise InputError(
            f"inputs is {kind(inputs)}, but must be a tensor whose first dimension is the rows, or a dict or tuple "
            "of such tensors."
        )
    if not isinstance(targets, Tensor) or not targets.dim():
        return torch.arange(0)  # the next check says what is wrong with the targets
    for name, part in tensors.items():
        if not part.dim() or len(part) != len(targets) or part.device != targets.device:
            place = f"inputs[{name!r}] is {kind(part)} on {part.device}"
            raise InputError(f"{place}, but targets has {len(targets)} rows on {targets.device}.")
    return torch.arange(len(targets), device=targets.device)


def is_several(inputs: Any) -> bool:
    return isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes)


def check_batch(networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor) -> None:
    """Raise, before any gradient, if these cannot be one batch for these networks."""
    for name, values in (("inputs", inputs), ("targets", targets)):
        if not isinstance(values, Tensor) or values.dim() == 0:
            raise InputError(f"{name} is {kind(values)}, but must be a tensor whose first dimension is the rows.")
    if len(inputs) != len(targets):
        raise InputError(f"inputs has {len(inputs)} rows, but targets {len(targets)}.")
    if len(inputs) == 0 and ranks.world_size() == 1:
        raise InputError("inputs is empty: a batch needs at least one row.")
    if len(set(networks)) < len(networks):
        raise InputError("models holds the same network twice. Two networks must differ: build the second anew.")
    for network in networks:
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise InputError("models has no trainable parameter, so there is no gradient. Unfreeze one.")
        if dist.is_available() and dist.is_initialized():  # else nothing can be wrapped, and the search takes time
            check_bare(network)
        devices = {inputs.device, targets.device, getattr(next(network.parameters(), None), "device", inputs.device)}
        if len(devices) > 1:
            where = ", ".join(sorted(map(str, devices)))
            raise InputError(f"network, inputs and targets are on {where}. Move them to one device.")


def check_bare(network: nn.Module) -> None:
    """Refuse a network any part of which shares its gradients with other ranks by itself.

    Any part, because torch.compile, or a module of the user's, may be around it.
    """
    if any(isinstance(part, DistributedDataParallel) for part in network.modules()):
        raise InputError(
            "models is wrapped in DistributedDataParallel, which would average what this step adds up itself. "
            "Pass the network inside, model.module."
        )
    if wrapper := sharded_by(network):
        raise InputError(
            f"models is sharded by {wrapper}, but this step adds up whole gradients, and PRL(G) needs each row's "
            "own over whole parameters. Use RobustLoss, which serves PRL(L) and SPL."
        )


def sharded_by(network: nn.Module) -> str | None:
    """What keeps the network, or a part of it, in shards; None if nothing does.

    Importing torch's shards takes seconds; whoever shards has imported them.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return None
    wrappers = {fsdp.FSDPModule: "fully_shard", fsdp.FullyShardedDataParallel: "FullyShardedDataParallel"}
    parts = network.modules()
    return next((name for part in parts for kind, name in wrappers.items() if isinstance(part, kind)), None)
