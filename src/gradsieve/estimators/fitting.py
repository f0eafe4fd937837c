"""Fitting networks to rows in memory, for the estimators and ``gradsieve fit``: from a plan to networks and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsieve import seeds
from gradsieve.counts import part
from gradsieve.data import Rows
from gradsieve.errors import InputError
from gradsieve.estimators.answers import row_scores
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rows import batch_rows, canonical_order, visits
from gradsieve.estimators.trainer import ClassCounts, Trainer
from gradsieve.method import Method
from gradsieve.models.build import require_new
from gradsieve.scores.recall import first_pass
from gradsieve.selection import keep_smallest
from gradsieve.training.feed import Feed, as_float
from gradsieve.training.ledger import Ledger
from gradsieve.training.repeatable import drawn_from, one_at_a_time, refuse_inference_mode, reproducible
from gradsieve.training.setting import choose_device, place
from gradsieve.training.tally import forsaken
from gradsieve.training.trial import require_outputs

ONE_PASS = 128  # batches with fewer rows: dropped rows cost less in the training pass than a second pass does


@dataclass(frozen=True)
class Fitted:
    """The result of a fit."""

    networks: list[nn.Module]  # in host memory and eval form; two if the method has two
    row_scores: NDArray[np.float64]  # (N,) how far each row's target is from the predictions, mean over the training
    kept: NDArray[np.bool_]  # (N,) the rows of smallest score, as many as the drop rate leaves
    ledger: Ledger  # in host memory
    drop_rate: float  # the last one
    history: list[dict[str, Any]]  # a record for each epoch
    of_class: ClassCounts

    def forsaken(self, names: Sequence[Any] | None = None) -> str:
        """A warning if the last epoch dropped nearly all rows of a class; else empty."""
        sentence = forsaken(*self.of_class, names)
        return sentence and f"In epoch {self.history[-1]['epoch']}, {sentence}"


@dataclass(frozen=True)
class Fits:
    """Fits to the same rows at any drop rate, each made when it is first asked for."""

    plan: Plan
    inputs: NDArray  # (N, ...) as `fit_networks` takes them
    targets_at: Callable[[bool], NDArray]  # whether rows are dropped -> the scaled targets
    make_network: Callable[[int], nn.Module]
    weights: NDArray | None = None
    tell: Callable[[dict[str, Any]], None] = lambda record: None
    made: dict[float, Fitted] = field(default_factory=dict, init=False, repr=False)

    def at(self, rate: float) -> Fitted:
        """The fit at a drop rate."""
        if rate not in self.made:
            plan = replace(self.plan, drop_rate=rate)
            targets = self.targets_at(plan.used_rate > 0)
            self.made[rate] = fit_networks(plan, self.inputs, targets, self.make_network, self.weights, self.tell)
        return self.made[rate]


def fit_networks(
    plan: Plan,
    inputs: NDArray,  # (N, ...) float32, or uint8 images (N, C, H, W)
    targets: NDArray,  # (N,) int64 classes, or (N, q) float32
    make_network: Callable[[int], nn.Module],  # given its number: a method may need two
    weights: NDArray | None = None,  # (N,) above 0
    tell: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Fitted:
    """Fit the networks of the plan's method to scaled rows. The order of the rows makes no difference."""
    rows = Rows(torch.from_numpy(inputs), torch.from_numpy(targets))
    order = canonical_order(inputs, targets, weights)
    trainer = make_trainer(plan, rows, order, make_network, weights)
    method, networks, device = trainer.method, trainer.networks, trainer.feed.device
    with reproducible(plan.seed, device):
        history = [tell(record) or record for record in trainer.epochs()]
    ledger = trainer.ledger.cpu()
    scores = row_scores(method, networks, rows, order, ledger, device)
    kept = torch.zeros(len(scores), dtype=torch.bool)
    classes = rows.targets if method.balanced else None
    kept[keep_smallest(scores, trainer.last_rate, classes=classes)] = True
    networks = [network.cpu().eval() for network in networks]
    return Fitted(networks, scores.numpy(), kept.numpy(), ledger, trainer.last_rate, history, trainer.of_class())


def make_trainer(
    plan: Plan, rows: Rows, order: Tensor, make_network: Callable[[int], nn.Module], weights: NDArray | None = None
) -> Trainer:
    """A plan ready to train on the rows in ``order``."""
    device, method = choose_device(plan.device), plan.make_method()
    held_out, order = split(order, plan)
    networks = [start(plan, make_network, number, rows.inputs, device) for number in range(method.networks)]
    batch = batch_rows(len(order), plan.batch_size)
    for network in networks:
        method.require(network, batch, device)
    if batch < ONE_PASS and "passes" not in plan.method_options:
        method = in_one_pass(method, networks, as_float(rows.inputs[:1].to(device)))
    held_weights = None if weights is None else torch.from_numpy(weights)[held_out]
    rows_of = visits(order, weights, plan.seed)
    trainer = Trainer(plan, method, networks, Feed(rows, device), rows_of, held_out, held_weights)
    trainer.watch(torch.arange(len(rows)), rows.targets)
    return trainer


def in_one_pass(method: Method, networks: Sequence[nn.Module], row: Tensor) -> Method:
    """The method with one forward pass instead of two, if its networks treat every row by itself: then both give the
    same but for rounding."""
    can = method.drops_rows and method.passes == "reforward" and type(method).look is Method.look
    is_alone = can and not any(first_pass(network, row, method.scoring).rest for network in networks)
    return replace(method, passes="index") if is_alone else method


def split(order: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """The rows held out for early stopping, and those to train on."""
    if not plan.validation_fraction:
        return order[:0], order
    count = max(1, part(plan.validation_fraction, len(order)))
    if count >= len(order):
        raise InputError(
            f"validation_fraction {plan.validation_fraction} of {len(order)} rows leaves none to train on. "
            "Give more rows, or early_stopping=False."
        )
    shuffled = order[torch.randperm(len(order), generator=seeds.generator(plan.seed, "validation"))]
    return shuffled[:count], shuffled[count:]


def start(
    plan: Plan, make_network: Callable[[int], nn.Module], number: int, inputs: Tensor, device: torch.device
) -> nn.Module:
    """A new network, from a random stream of its own, checked to give the right outputs for a row."""
    refuse_inference_mode()
    with drawn_from(plan.seed, number):
        network = require_new("module", make_network(number))
        network = place(network, device, "fp32").float()  # like the rows, whatever a user's module is
    row = inputs[:1].to(device)
    with one_at_a_time:
        require_outputs(network, row, plan.task, plan.outputs, name="module", row_name="one row")
    return network.train()
