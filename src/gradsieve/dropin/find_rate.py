"""A drop rate for your own training loop: the loop runs at several rates, and held-out rows vote for the best.

    def fit(rate, rows):                      # your loop, as a generator
        robust, network, optimizer = ...
        for epoch in range(20):
            ...                               # an epoch over these rows
            yield lambda others: ...          # the network's predictions for other rows

    pick = find_drop_rate(fit, targets, epochs=20)

A thin wrapper of ``gradsieve.choosing.rates``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gradsieve import seeds
from gradsieve.choosing.electorate import Part, electorate
from gradsieve.choosing.pick import RatePick
from gradsieve.choosing.rates import race
from gradsieve.choosing.reading import read_weights, to_numbers
from gradsieve.data.validate import check_count
from gradsieve.errors import InputError
from gradsieve.training.repeatable import reproducible

# Row numbers (n,) -> probabilities (n, classes), those of class 1 (n,), or outputs (n,) or (n, q).
Answer = Callable[[Tensor], Any]
Loop = Callable[[float, Tensor], Iterator[Answer]]  # a rate, and the numbers of the rows to train on


def find_drop_rate(
    loop: Loop, targets: ArrayLike | Tensor, *, epochs: int, weights: ArrayLike | None = None, seed: int = 0
) -> RatePick:
    """Find the drop rate at which ``loop`` learns best, judged on held-out rows whose targets may be wrong too.

    ``loop(rate, rows)`` is a generator. It trains a network of its own on these rows and yields once per epoch, at
    least ``epochs`` times. What it yields is a function from row numbers to predictions for these rows: probabilities
    for classes, otherwise outputs. All candidates draw the same random numbers from torch's generators, whose state is
    restored afterwards. ``weights``: how much each row's vote counts.

    Returns a `RatePick`: the ``rate`` to use, an ``estimate`` of the share of wrong targets with its ``interval``, and
    a ``warning`` if the rows cannot decide.
    """
    check_count("epochs", epochs, 1)
    given = to_numbers(targets, "targets")
    check_targets(given)  # before the first step
    counts = None if weights is None else read_weights(weights, len(given))

    def start(rate: float, part: Part) -> Runner:
        return Runner(loop, rate, part, epochs, seed)

    return race(start, electorate(len(given), seed), given, weights=counts, seed=seed)


class Runner:
    """One network of a candidate: the running ``loop`` at one rate, on one part of the rows."""

    def __init__(self, loop: Loop, rate: float, part: Part, epochs: int, seed: int) -> None:
        self.loop, self.rate, self.part, self.epochs, self.seed = loop, rate, part, epochs, seed
        self.voters, self.done = part.voters, 0

    @cached_property
    def answers(self) -> Iterator[Answer]:
        """The running loop. `train` starts it, so that its network is drawn from the candidates' random numbers."""
        answers = self.loop(self.rate, self.part.trained)
        if not isinstance(answers, Iterator):
            raise InputError(f"loop gives {answers!r}, but must be a generator: yield once an epoch.")
        return answers

    def train(self, share: float) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with reproducible(seeds.derive(self.seed, "candidate", self.done), device):
            while self.done < max(1, round(share * self.epochs)):
                self.answer = next(self.answers, None)
                if not callable(self.answer):
                    raise InputError(
                        f"loop gave {self.answer!r} as number {self.done + 1} of {self.epochs} epochs, but must yield "
                        "a function once an epoch: row numbers in, predictions for these rows out."
                    )
                self.done += 1

    def predict(self) -> NDArray:
        assert self.answer is not None
        with torch.no_grad():
            answers = to_numbers(self.answer(self.voters), "predictions")
        if len(answers) != len(self.voters):
            raise InputError(f"loop was asked about {len(self.voters)} rows, but its function answers {len(answers)}.")
        return answers


def check_targets(given: NDArray) -> None:
    """Raise if a target cannot be used. Checked here, where row numbers are still the caller's, to name the row."""
    if not given.ndim or not len(given):
        raise InputError(f"targets has the shape {given.shape}, but must be the targets of all rows, (N,) or (N, q).")
    rows = given.reshape(len(given), -1)
    if given.dtype.kind == "f" and not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(1)))
        raise InputError(f"targets[{row}] is not finite. Leave the row out: it cannot vote.")
    if given.dtype.kind == "i" and given.ndim == 1 and given.min() < 0:
        row = int(given.argmin())
        raise InputError(
            f"targets[{row}] is {given[row]}, but classes are numbered from 0. Leave the row out, or renumber. "
            "Real-valued targets must be floats."
        )
