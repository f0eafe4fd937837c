"""Training two rival networks that compete for the rows (see `gradsieve.choosing.rivals`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsieve import seeds
from gradsieve.choosing.electorate import Part
from gradsieve.choosing.rivals import majority_first
from gradsieve.data import Rows
from gradsieve.data.dataset import Task
from gradsieve.errors import GradsieveError
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.fitting import start
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rows import batch_rows, visits
from gradsieve.estimators.trainer import Trainer
from gradsieve.method import Method, Selection
from gradsieve.scores.outputs import one_tensor
from gradsieve.selection import keep_smallest
from gradsieve.training.feed import Feed
from gradsieve.training.repeatable import reproducible
from gradsieve.training.setting import CRITERIA, choose_device

GIVEN_AWAY = 0.4  # the share of the rows that the second network begins with
RISE = 6  # that share rises for a sixth of the epochs and stays for another; then rows are divided by likelihood
MOST_ROWS = 2000  # of a part that rivals are trained on
FEWER = 0.6  # of the epochs, for parts with more rows: there a race should cost little more than one run
TURNS = 4  # iterations that divide a batch's rows between the networks
LEAST_SHARE, LEAST_VARIANCE = 0.01, 0.0025  # of a network, so that it is not lost for good
CHANCE = 9.0  # the variance of rows that belong to neither, in squared robust standard deviations of the targets


@dataclass(frozen=True)
class RivalNetworks(Method):
    """Each of two networks learns the rows that it fits better than the other.

    While the drop rate is above 0, the second network gets the rows that the first would drop. After that every row of
    a batch belongs to the first, the second or neither with a probability, by expectation maximization.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("regression",)
    networks: ClassVar[int] = 2
    drops_rows: ClassVar[bool] = True

    def step(self, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, drop_rate: float) -> list[Selection]:
        outputs = [one_tensor(network(inputs)) for network in networks]
        squares = torch.stack([((each - targets) ** 2).mean(1) for each in outputs])  # (2, N)
        with torch.no_grad():
            own = divided(squares.detach(), targets, drop_rate)
        losses = (own * squares).sum(1) / own.sum(1).clamp(min=1)
        losses.sum().backward()
        rows = torch.arange(len(targets), device=targets.device)
        return [Selection(each.detach(), rows, loss.detach()) for each, loss in zip(squares, losses, strict=True)]


def divided(squares: Tensor, targets: Tensor, drop_rate: float) -> Tensor:
    """(2, N) the weight of each row for each network, by their mean square errors (2, N)."""
    rows, outputs = targets.shape
    kept = keep_smallest(squares[0], drop_rate or GIVEN_AWAY)
    own = torch.zeros(3, rows, device=squares.device)
    own[1] = 1
    own[:, kept] = torch.tensor([[1.0], [0.0], [0.0]], device=squares.device)
    if drop_rate:
        return own[:2]
    chance = -0.5 * outputs * ((targets**2).mean(1) / CHANCE + torch.tensor(CHANCE).log())
    own = 0.98 * own + 0.02 / 3
    for _ in range(TURNS):
        shares = own.mean(1).clamp(min=LEAST_SHARE).log()
        variance = (own[:2] * squares).sum(1) / own[:2].sum(1).clamp(min=1)
        variance = variance.clamp(min=LEAST_VARIANCE)[:, None]
        of_networks = -0.5 * outputs * (squares / variance + variance.log())
        own = (torch.cat([of_networks, chance[None]]) + shares[:, None]).softmax(0)
    return own[:2]


def rival_schedule(T: int, drop_rate: float, ramp: int) -> float:
    """A drop rate that rises during ``ramp`` epochs, stays for as many, and then is 0."""
    return 0.0 if 2 * ramp < T else drop_rate * min(T / max(1, ramp), 1)


def fit_rivals(
    plan: Plan,
    rows: Rows,
    part: Part,
    make_network: Callable[[int], nn.Module],
    weights: NDArray | None = None,
) -> NDArray:
    """Train two rivals on a part of the rows and predict for its voters, (2, N, q); the majority's network first."""
    own = part.trained[:MOST_ROWS]
    epochs = plan.epochs if len(own) == len(part.trained) else max(1, round(FEWER * plan.epochs))
    plan = replace(
        plan,
        drop_rate=GIVEN_AWAY,
        schedule=f"{rival_schedule.__module__}:{rival_schedule.__name__}",
        epochs=epochs,
        ramp=max(1, round(epochs / RISE)),
        learns_rate=False,
        validation_fraction=0.0,
        batch_size=max(2, batch_rows(len(own), plan.batch_size) // 2),  # each network learns from a part of a batch
    )
    device = choose_device(plan.device)
    networks = [start(plan, make_network, number, rows.inputs, device) for number in range(2)]
    order = visits(own, weights, plan.seed)
    trainer = Trainer(plan, RivalNetworks(CRITERIA[plan.task]), networks, Feed(rows, device), order, own[:0])
    with reproducible(seeds.derive(plan.seed, "rivals"), device):
        for _ in trainer.epochs():
            pass

    def answers(these: Tensor) -> NDArray:
        inputs = rows.inputs[these].numpy()
        return np.stack([mean_outputs([network], inputs, plan.task, plan.device) for network in networks])

    learnt, asked = answers(own), answers(part.voters)
    if not (np.isfinite(learnt).all() and np.isfinite(asked).all()):
        raise GradsieveError("The training of two rivals has diverged: their predictions are not finite.")
    return asked[list(majority_first(learnt, rows.targets[own].numpy()))]
