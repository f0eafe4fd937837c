"""``drop_rate="auto"``: the share of a table's rows to drop, chosen by held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsieve import seeds
from gradsieve.choosing.electorate import Electorate, Part, electorate
from gradsieve.choosing.pick import RatePick, no_pick
from gradsieve.choosing.rates import race
from gradsieve.data import Rows
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.fitting import make_trainer
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rivals import fit_rivals
from gradsieve.estimators.rows import canonical_order
from gradsieve.estimators.trainer import Trainer
from gradsieve.methods import METHODS
from gradsieve.training.repeatable import reproducible

TargetsAt = Callable[[bool], NDArray]  # whether rows are dropped -> the scaled targets


def choose_rate(
    plan: Plan,
    inputs: NDArray,  # (N, ...) as `fit_networks` takes them
    targets_at: TargetsAt,
    make_network: Callable[[int], nn.Module],
    weights: NDArray | None = None,
) -> RatePick:
    """The rate for these rows, whatever their order; 0 if the method drops none or there are too few rows."""
    if not METHODS[plan.method].drops_rows:
        return no_pick()
    start, electors = line_up(plan, inputs, targets_at, make_network, weights)
    rivals = rivals_at(plan, inputs, targets_at, make_network, weights)
    return race(start, electors, targets_at(True), weights=weights, seed=plan.seed, rivals=rivals, has_curve=True)


def line_up(
    plan: Plan,
    inputs: NDArray,
    targets_at: TargetsAt,
    make_network: Callable[[int], nn.Module],
    weights: NDArray | None = None,
) -> tuple[Callable[[float, Part], Runner], Electorate]:
    """A function that starts a candidate at a rate on a part of the rows, and the electorate of these parts."""

    @cache
    def rows(drops: bool) -> Rows:
        return Rows(torch.from_numpy(inputs), torch.from_numpy(targets_at(drops)))

    order = canonical_order(inputs, targets_at(True), weights)
    electors = electorate(len(inputs), plan.seed).renumbered(order)

    def start(rate: float, part: Part) -> Runner:
        at_rate = replace(plan, drop_rate=rate)
        return Runner(make_trainer(at_rate, rows(rate > 0), part.trained, make_network, weights), part.voters)

    return start, electors


def rivals_at(
    plan: Plan,
    inputs: NDArray,
    targets_at: TargetsAt,
    make_network: Callable[[int], nn.Module],
    weights: NDArray | None = None,
) -> Callable[[Part], NDArray] | None:
    """A function that trains two rival networks on a part and predicts for its voters; None for classes."""
    if plan.task == "classification":
        return None
    return lambda part: fit_rivals(
        plan, Rows(torch.from_numpy(inputs), torch.from_numpy(targets_at(True))), part, make_network, weights
    )


class Runner:
    """A candidate on one part of the rows: trained on some, and asked about its voters."""

    def __init__(self, trainer: Trainer, voters: Tensor) -> None:
        self.trainer, self.voters = trainer, voters
        self.records, self.done = trainer.epochs(), 0

    def train(self, share: float) -> None:
        plan, feed = self.trainer.plan, self.trainer.feed
        with reproducible(seeds.derive(plan.seed, "candidate", self.done), feed.device):
            while self.done < max(1, round(share * plan.epochs)) or share == 1:  # early stopping may end it before
                if next(self.records, None) is None:
                    break
                self.done += 1

    def predict(self) -> NDArray:
        trainer = self.trainer
        inputs = trainer.feed.inputs[self.voters.to(trainer.feed.inputs.device)].cpu().numpy()
        return mean_outputs(trainer.networks, inputs, trainer.plan.task, trainer.plan.device)
