"""What a robust step does beside the network, part by part."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradsieve.experiments.floors import captured
from gradsieve.experiments.workloads import Workload, set_up
from gradsieve.method import Method, Selection, make_method, take
from gradsieve.methods import METHODS
from gradsieve.training.ledger import Ledger
from gradsieve.training.tally import Tally

Step = Callable[[], None]
METHOD = "prl-l"
ROWS = 50_000  # of the ledger: those of CIFAR


def make_parts(workload: Workload, drop_rate: float, device: torch.device) -> dict[str, Step]:
    """Scores, selection and book-keeping alone; all that a drop-in loss does to the outputs, beside a plain loss.

    On a GPU each is captured as a graph: what it adds to a captured step.
    """
    setup = set_up(workload, device)
    rule: Method = make_method(METHOD, METHODS, workload.criterion, workload.task, {})
    targets = setup.targets
    with torch.no_grad():
        outputs = setup.networks[0](setup.inputs)
    scores = rule.scores(outputs, targets)
    kept = rule.select(scores, targets, drop_rate)
    rows = torch.randperm(max(ROWS, workload.batch_size), device=device)[: workload.batch_size]
    ledger = Ledger.empty(max(ROWS, workload.batch_size), device)
    tally = Tally.empty(workload.outputs if workload.task == "classification" else 0, device)
    is_corrupted = ledger.judged > 0
    selection = Selection(scores.values if scores else None, kept, torch.ones((), device=device))
    free = outputs.float().requires_grad_()

    def keep_books() -> None:
        ledger.record(rows, selection.scores, kept)
        tally.add(rows, targets, [selection], is_corrupted)

    def robust_loss() -> None:
        own = rule.select(rule.scores(free.detach(), targets), targets, drop_rate)
        losses = rule.losses(free, targets)
        torch.autograd.grad(take(losses, own).mean(), free)

    def plain_loss() -> None:
        torch.autograd.grad(workload.criterion(free, targets), free)

    parts: dict[str, Step] = {
        "scores": lambda: void(rule.scores(outputs, targets)),
        "selection": lambda: void(rule.select(scores, targets, drop_rate)),
        "ledger and tally": keep_books,
        "robust loss": robust_loss,
        "plain loss": plain_loss,
    }
    return {name: captured(step, device) if device.type == "cuda" else step for name, step in parts.items()}


def void(_: object) -> None:
    """For a lambda that is a step: nothing comes back."""
