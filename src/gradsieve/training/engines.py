"""How the steps of an epoch are launched on the device: one by one from Python, or each as one captured CUDA graph.

Both compute the same. The captured engine keeps the row order and its place in it on the device and draws its batches
there. It captures one graph for each number of rows that a step keeps: static shapes run faster than dynamic ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

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

# Steps after which compiling them has paid off: it takes half a minute for cnn9 on an H200 and saves about a
# millisecond a step (docs/performance.md); a quarter of that where other runs share the program through torch's cache.
# A fixed number instead of a measurement, so that a resumed run decides the same.
STEPS_TO_PAY_BACK = {"auto": 40_000, "shared": 10_000}
OVER_RANKS = "how many rows of its own a rank keeps is for all ranks to decide, in every step anew"


class CaptureError(GradsieveError):
    """A step that could not be captured as a CUDA graph."""


class PlainEngine:
    """Launches every operation of a step from Python."""

    name = "plain"

    def __init__(self, setting: Setting, state: State, feed: Feed) -> None:
        self.setting, self.run, self.method, self.state, self.feed = setting, setting.run, setting.method, state, feed
        self.is_corrupted = setting.is_corrupted.to(setting.device)
        self.programs = Programs()
        self.steps_at: Counter[int] = Counter()  # for a number of kept rows, how many steps of the run keep that many
        for rate in setting.rates:
            self.steps_at[self.kept(rate)] += setting.steps_an_epoch if self.run.schedule_unit == "epoch" else 1

    def steps(self, order: Tensor) -> Iterator[None]:
        """Take the steps of an epoch over ``order`` that are left to do."""
        for batch in self.feed.batches(order, self.run.batch_size, self.state.step):
            self.step(batch, self.rate())
            yield

    def step(self, batch: Batch, rate: float) -> None:
        """Select rows, update the networks, and record both in ledger and tally."""
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
        """How many rows of a batch are kept, on which the shapes of a step depend."""
        return keep_count(rate, min(self.run.batch_size, len(self.feed)))

    def compiles(self, rate: float) -> bool:
        """Whether steps at this rate are compiled: on request, or (captured engine) where it pays off in the run."""
        return self.run.compile == "on"


class CapturedEngine(PlainEngine):
    """Replays, for each step, the graph for its number of kept rows."""

    name = "captured"

    def __init__(self, setting: Setting, state: State, feed: Feed) -> None:
        super().__init__(setting, state, feed)
        # A capture runs its step a few times to warm up. Late in an epoch that would read beyond the last row.
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
                with fixed_buffers(self.state.networks):
                    graph = capture(partial(self.draw_and_step, rate, size), self.changing, pool)
                self.graphs[key] = graph
            except RuntimeError as error:
                raise CaptureError(f"the step cannot be captured ({str(error).splitlines()[0]})") from error
            finally:
                for network in self.state.networks:  # their gradients lie in the graph's memory pool
                    network.zero_grad()
        return self.graphs[key]

    def draw_and_step(self, rate: float, size: int) -> None:
        take: Callable[..., Any] = partial(draw, size=size, augment=self.feed.augment)
        if self.compiles(rate):
            take = partial(self.programs.run, ("draw", size), take)
        self.step(Batch(*take(self.order, self.place, self.feed.inputs, self.feed.targets)), rate)

    def changing(self) -> dict[str, Tensor]:
        """All tensors that a step changes, apart from the states of random generators."""
        tensors = {name: tensor for name, tensor in self.state.tensors().items() if not name.startswith("rng.")}
        return tensors | {"place": self.place}

    def compiles(self, rate: float) -> bool:
        enough = STEPS_TO_PAY_BACK.get(self.run.compile, math.inf)
        return super().compiles(rate) or self.steps_at[self.kept(rate)] >= enough


@contextmanager
def fixed_buffers(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Raise a CaptureError if other tensors take the place of the networks' buffers meanwhile; put the first ones back.

    A graph always reads the tensors that there were when it was captured. It would not see that a step replaced them.
    """
    held = [(module, dict(module._buffers)) for network in networks for module in network.modules()]
    replaced: list[str] = []
    try:
        yield
    finally:
        for module, buffers in held:
            replaced += [name for name, buffer in buffers.items() if module._buffers.get(name) is not buffer]
            module._buffers.update(buffers)
    if replaced:
        raise CaptureError(f"the network replaces its buffer {replaced[0]!r} in a step, instead of writing into it")


def enter(
    ledger: Sequence[Tensor], tally: Sequence[Tensor], batch: Sequence[Tensor], selections: Sequence[Sequence[Any]]
) -> None:
    """Record a step in the columns of ledger and tally.

    ``batch`` is (rows, targets, is_corrupted); ``selections`` holds the fields of each network's Selection.
    """
    rows, targets, is_corrupted = batch
    judged = [Selection(*selection) for selection in selections]
    for selection in judged:
        Ledger(*ledger).record(rows, selection.scores, selection.kept)
    Tally(*tally).add(rows, targets, judged, is_corrupted)


def make_engine(setting: Setting, state: State, feed: Feed) -> tuple[PlainEngine, str]:
    """The engine that a run asks for or that suits it best, and why there is no faster one (may be empty)."""
    obstacle = obstacle_to_capture(setting, feed.resident)
    if setting.run.engine == "plain" or obstacle:
        return PlainEngine(setting, state, feed), obstacle if setting.device.type == "cuda" else ""
    return CapturedEngine(setting, state, feed), ""


def require_engine(setting: Setting) -> None:
    """Refuse, before the first step, a captured or compiled step that is not possible."""
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
    """Why a step cannot be captured, with the data ``resident`` on the device or not; empty if it can."""
    if setting.device.type != "cuda":
        return f"only CUDA has graphs, and the device is {setting.device.type}"
    if ranks.world_size() > 1:
        return OVER_RANKS
    if not resident:
        return "the data does not fit on the device and streams from the host"
    if setting.method.decides_on_host:
        return on_host(setting)
    return ""
