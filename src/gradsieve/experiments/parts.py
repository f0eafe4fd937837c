"""What a robust step does besides running the network, part by part, for timing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradsieve.engine.compiled import Programs
from gradsieve.experiments.floors import captured
from gradsieve.experiments.workloads import Workload, set_up
from gradsieve.method import Method, Scores, make_method, take
from gradsieve.methods import METHODS
from gradsieve.training.engines import enter
from gradsieve.training.ledger import Ledger
from gradsieve.training.tally import Tally

Step = Callable[[], None]
METHOD = "prl-l"  # whose parts are timed
ROWS = 50_000  # in the ledger, as for CIFAR


def make_parts(workload: Workload, drop_rate: float, device: torch.device, compiles: bool = False) -> dict[str, Step]:
    """Steps for scores, selection and recording alone, and for a drop-in loss and a plain loss on given outputs.

    On a GPU each is captured as a graph, and compiled if the step is, so that it takes as long as within such a step.
    """
    setup = set_up(workload, device)
    rule: Method = make_method(METHOD, METHODS, workload.criterion, workload.task, {})
    targets = setup.targets
    with torch.no_grad():
        outputs = setup.networks[0](setup.inputs)
    ranked = rule.scores(outputs, targets)
    assert ranked is not None  # METHOD has scores
    rows = torch.randperm(max(ROWS, workload.batch_size), device=device)[: workload.batch_size]
    ledger = Ledger.empty(max(ROWS, workload.batch_size), device)
    tally = Tally.empty(workload.outputs if workload.task == "classification" else 0, device)
    judged = [rows, targets, ledger.judged > 0]
    selection = [ranked.values, rule.select(ranked, targets, drop_rate), torch.ones((), device=device)]

    def scores(outputs: Tensor, targets: Tensor) -> Any:
        return tuple(rule.scores(outputs, targets) or ())

    def select(values: Tensor, ties: Tensor | None, targets: Tensor) -> Tensor:
        return rule.select(Scores(values, ties), targets, drop_rate)

    def robust_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        own = rule.select(rule.scores(outputs, targets), targets, drop_rate)
        free = outputs.detach().float().requires_grad_()
        losses = rule.losses(free, targets)
        return torch.autograd.grad(take(losses, own).mean(), free)[0]

    def plain_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        free = outputs.detach().float().requires_grad_()
        return torch.autograd.grad(workload.criterion(free, targets), free)[0]

    books = [*ledger.tensors().values()], [*tally.tensors().values()]
    parts: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "scores": (scores, (outputs, targets)),
        "selection": (select, (*ranked, targets)),
        "ledger and tally": (enter, (*books, judged, [selection])),
        "robust loss": (robust_loss, (outputs, targets)),
        "plain loss": (plain_loss, (outputs, targets)),
    }
    programs = Programs()

    def step(name: str) -> None:
        function, tensors = parts[name]
        programs.run(name, function, *tensors) if compiles else function(*tensors)

    steps = {name: partial(step, name) for name in parts}
    return {name: captured(each, device) if device.type == "cuda" else each for name, each in steps.items()}


def void(_: object) -> None:
    """Drop a value, for lambdas that must return None."""
