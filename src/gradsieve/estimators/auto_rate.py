"""``drop_rate="auto"``: the share of a table's rows to drop, chosen by held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsieve import seeds
from gradsieve.choosing.electorate import Electorate, Part, electorate
from gradsieve.choosing.pick import RatePick, no_pick
from gradsieve.choosing.rates import race
from gradsieve.data import Rows
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.fitting import Fits, make_trainer
from gradsieve.estimators.rivals import fit_rivals
from gradsieve.estimators.rows import canonical_order
from gradsieve.estimators.trainer import Trainer
from gradsieve.methods import METHODS
from gradsieve.training.repeatable import reproducible


def choose_rate(fits: Fits) -> RatePick:
    """The rate for these rows, whatever their order; 0 if the method drops none or there are too few rows.

    If the rows speak for dropping some real-valued targets, that fit is made, to see whether it does what they want.
    """
    if not METHODS[fits.plan.method].drops_rows:
        return no_pick()
    return let_vote(fits, *line_up(fits))


def let_vote(fits: Fits, start: Callable[[float, Part], Runner], electors: Electorate) -> RatePick:
    """The rate for which these candidates' voters decide."""
    return race(
        start,
        electors,
        fits.targets_at(True),
        weights=fits.weights,
        seed=fits.plan.seed,
        rivals=rivals_of(fits),
        has_curve=True,
        fit=lambda rate: FitAsCandidate(fits, rate, electors.whole.voters),
    )


def line_up(fits: Fits) -> tuple[Callable[[float, Part], Runner], Electorate]:
    """A function that starts a candidate at a rate on a part of the rows, and the electorate of these parts."""

    @cache
    def rows(drops: bool) -> Rows:
        return Rows(torch.from_numpy(fits.inputs), torch.from_numpy(fits.targets_at(drops)))

    order = canonical_order(fits.inputs, fits.targets_at(True), fits.weights)
    electors = electorate(len(fits.inputs), fits.plan.seed).renumbered(order)

    def start(rate: float, part: Part) -> Runner:
        plan = replace(fits.plan, drop_rate=rate)
        return Runner(make_trainer(plan, rows(rate > 0), part.trained, fits.make_network, fits.weights), part.voters)

    return start, electors


def rivals_of(fits: Fits) -> Callable[[Part], NDArray] | None:
    """A function that trains two rival networks on a part and predicts for its voters; None for classes."""
    if fits.plan.task == "classification":
        return None
    rows = Rows(torch.from_numpy(fits.inputs), torch.from_numpy(fits.targets_at(True)))
    return lambda part: fit_rivals(fits.plan, rows, part, fits.make_network, fits.weights)


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


class FitAsCandidate:
    """The fit to all rows, which voters are asked about before it counts. It is made whole or not at all."""

    def __init__(self, fits: Fits, rate: float, voters: Tensor) -> None:
        self.fits, self.rate, self.voters = fits, rate, voters

    def train(self, share: float) -> None:
        assert share == 1
        self.fits.at(self.rate)

    def predict(self) -> NDArray:
        fits, inputs = self.fits, self.fits.inputs[self.voters.numpy()]
        return mean_outputs(fits.at(self.rate).networks, inputs, fits.plan.task, fits.plan.device)
