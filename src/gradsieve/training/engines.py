"""How the steps of an epoch reach the device: one by one from Python, or each as one captured graph.

Both compute the same. The captured engine draws its batches on the device, from an order and a place in it that live
there, and has one graph for each number of rows that a step keeps: static shapes run faster than dynamic ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradsieve import ranks
from gradsieve.arguments import argument
from gradsieve.counts import keep_count
from gradsieve.engine.captured import WARM_STEPS, capture
from gradsieve.engine.compiled import Programs, compiled_step
from gradsieve.errors import GradsieveError, InputError
from gradsieve.method import Selection
from gradsieve.training.feed import Batch, Feed, draw, fits
from gradsieve.training.ledger import Ledger
from gradsieve.training.setting import Setting
from gradsieve.training.state import State
from gradsieve.training.tally import Tally
from gradsieve.training.update import update

# So many steps are taken to pay back their compiling: half a minute to make a program of cnn9 on an H200, for a
# millisecond a step or so (docs/performance.md); where other runs share it through torch's cache, a quarter of that.
# A rule, no timing, so that a resumed run decides the same.
STEPS_TO_PAY_BACK = {"auto": 40_000, "shared": 10_000}
OVER_RANKS = "how many rows of its own a rank keeps is for all ranks to decide, in every step anew"


class CaptureError(GradsieveError):
    """A step that was to be one graph, and is not."""


class PlainEngine:
    """Step by step, as Python goes."""

    name = "plain"

    def __init__(self, setting: Setting, state: State, feed: Feed) -> None:
        self.setting, self.run, self.method, self.state, self.feed = setting, setting.run, setting.method, state, feed
        self.is_corrupted = setting.is_corrupted.to(setting.device)
        self.programs = Programs()
        self.steps_at: Counter[int] = Counter()  # how many steps of the run keep that many rows
        for rate in setting.rates:
            self.steps_at[self.kept(rate)] += setting.steps_an_epoch if self.run.schedule_unit == "epoch" else 1

    def steps(self, order: Tensor) -> Iterator[None]:
        """Those steps of an epoch over ``order`` that the state has not done yet."""
        for batch in self.feed.batches(order, self.run.batch_size, self.state.step):
            self.step(batch, self.rate())
            yield

    def step(self, batch: Batch, rate: float) -> None:
        """Look, choose, update, and enter it in the books."""
        state, compiles = self.state, self.compiles(rate)
        step = partial(compiled_step, self.programs, self.method) if compiles else None
        selections = update(self.method, state.networks, state.optimizers, batch.inputs, batch.targets, rate, step)
        if self.run.batchnorm == "local":
            for network in state.networks:
                ranks.average_statistics(network)
        books = [*state.ledger.tensors().values()], [*state.tally.tensors().values()]
        judged = [batch.rows, batch.targets, self.is_corrupted], [list(selection) for selection in selections]
        self.programs.run("enter", enter, *books, *judged) if compiles else enter(*books, *judged)

    def rate(self) -> float:
        return self.setting.drop_rate(self.state.epoch, self.state.step)

    def kept(self, rate: float) -> int:
        """How many rows of a batch stay: what the shapes of a step depend on."""
        return keep_count(rate, min(self.run.batch_size, len(self.feed)))

    def compiles(self, rate: float) -> bool:
        """Whether steps at this rate are compiled: where that is asked for, or pays back within the run."""
        return self.run.compile == "on"


class CapturedEngine(PlainEngine):
    """Each step a replay of the graph for its number of kept rows."""

    name = "captured"

    def __init__(self, setting: Setting, state: State, feed: Feed) -> None:
        super().__init__(setting, state, feed)
        # A capture tries its step a few times, at the end of an epoch beyond the last row.
        length = len(feed) + WARM_STEPS * self.run.batch_size
        self.order = torch.arange(length, device=setting.device) % len(feed)
        self.place = torch.zeros((), dtype=torch.int64, device=setting.device)
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def steps(self, order: Tensor) -> Iterator[None]:
        self.order[: len(order)] = order
        size = min(self.run.batch_size, len(order))
        self.place.fill_(self.state.step * size)
        for _ in range(self.state.step, len(order) // size):
            self.graph(self.rate(), size).replay()
            yield

    def graph(self, rate: float, size: int) -> torch.cuda.CUDAGraph:
        """The graph of a step that takes ``size`` rows and drops the share ``rate`` of them."""
        key = self.kept(rate), size
        if key not in self.graphs:
            pool = next(iter(self.graphs.values())).pool() if self.graphs else None
            try:
                self.graphs[key] = capture(partial(self.draw_and_step, rate, size), self.changing, pool)
            except RuntimeError as error:
                raise CaptureError(f"the step cannot be captured ({str(error).splitlines()[0]})") from error
            finally:
                for network in self.state.networks:  # gradients live in a graph's memory
                    network.zero_grad()
        return self.graphs[key]

    def draw_and_step(self, rate: float, size: int) -> None:
        take: Callable[..., Any] = partial(draw, size=size, augment=self.feed.augment)
        if self.compiles(rate):
            take = partial(self.programs.run, ("draw", size), take)
        self.step(Batch(*take(self.order, self.place, self.feed.inputs, self.feed.targets)), rate)

    def changing(self) -> dict[str, Tensor]:
        """All that a step changes, random numbers aside."""
        tensors = {name: tensor for name, tensor in self.state.tensors().items() if not name.startswith("rng.")}
        return tensors | {"place": self.place}

    def compiles(self, rate: float) -> bool:
        enough = STEPS_TO_PAY_BACK.get(self.run.compile, math.inf)
        return super().compiles(rate) or self.steps_at[self.kept(rate)] >= enough


def enter(
    ledger: Sequence[Tensor], tally: Sequence[Tensor], batch: Sequence[Tensor], selections: Sequence[Sequence[Any]]
) -> None:
    """Enter a step in the books: their columns, the batch's rows, targets and truth, what each network made of it."""
    rows, targets, is_corrupted = batch
    judged = [Selection(*selection) for selection in selections]
    for selection in judged:
        Ledger(*ledger).record(rows, selection.scores, selection.kept)
    Tally(*tally).add(rows, targets, judged, is_corrupted)


def make_engine(setting: Setting, state: State, feed: Feed) -> tuple[PlainEngine, str]:
    """The engine that a run asks for or that suits it best, and the obstacle to a faster one, in words."""
    obstacle = obstacle_to_capture(setting, feed.resident)
    if setting.run.engine == "plain" or obstacle:
        return PlainEngine(setting, state, feed), obstacle if setting.device.type == "cuda" else ""
    return CapturedEngine(setting, state, feed), ""


def require_engine(setting: Setting) -> None:
    """Refuse, before the first step, a captured or compiled step where it cannot be."""
    obstacle = obstacle_to_capture(setting, fits(setting.data.train, setting.device))
    if setting.run.engine == "captured" and obstacle:
        raise InputError(f"{argument('engine')} is 'captured', but {obstacle}. Leave it out to take the one that fits.")
    if setting.run.compile == "on" and setting.method.decides_on_host:
        raise InputError(f"{argument('compile')} is 'on', but {on_host(setting)}. Leave it out.")
    if setting.run.compile == "on" and ranks.world_size() > 1:
        raise InputError(f"{argument('compile')} is 'on', but {OVER_RANKS}. Leave it out.")


def on_host(setting: Setting) -> str:
    return f"{setting.run.method} decides on the host how many rows it keeps"


def obstacle_to_capture(setting: Setting, resident: bool) -> str:
    """Why a step can't be one graph, where the data is ``resident`` on the device or not; empty where it can."""
    if setting.device.type != "cuda":
        return f"only CUDA has graphs, and the device is {setting.device.type}"
    if ranks.world_size() > 1:
        return OVER_RANKS
    if not resident:
        return "the data does not fit on the device and streams from the host"
    if setting.method.decides_on_host:
        return on_host(setting)
    return ""
