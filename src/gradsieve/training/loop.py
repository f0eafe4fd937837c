"""The training loop: epochs, tests, states. It knows no method by name."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradsieve import ranks
from gradsieve.errors import GradsieveError, InputError
from gradsieve.metrics import METRICS
from gradsieve.theory import check_breakdown
from gradsieve.training.auto_rate import settle_rate
from gradsieve.training.engines import CaptureError, PlainEngine, make_engine, require_engine
from gradsieve.training.evaluate import predict, test_metric
from gradsieve.training.feed import Feed, epoch_order
from gradsieve.training.folder import RunFolder, open_folder
from gradsieve.training.interrupt import Interrupted, stop_request
from gradsieve.training.ledger import Ledger
from gradsieve.training.probe import Probe
from gradsieve.training.progress import Progress, make_progress
from gradsieve.training.repeatable import reproducible
from gradsieve.training.result import Result, finish, read_result
from gradsieve.training.run import Run, most_dropped
from gradsieve.training.setting import (
    Setting,
    at_rate,
    make_optimizer,
    prepare,
    real_precision,
    require_outputs,
    require_statistics,
    set_learning_rate,
)
from gradsieve.training.state import State
from gradsieve.training.tally import Tally


def train(
    run: Run,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    save_every: float = 30.0,
    bounds: bool = False,
    show: bool = False,
) -> Result:
    """Train, test after every epoch, and write the folder ``out`` (nothing where it is None).

    ``resume`` goes on from where the folder stands, or starts it. A state is saved every ``save_every`` seconds
    and on Ctrl-C; killed and resumed, a run ends with the same bits. ``bounds`` measures, once an epoch, the error
    of the gradient beside the paper's bound on it.
    """
    folder = None if out is None else open_folder(Path(out), run, resume)
    if folder is not None and folder.finished:
        return read_result(folder)
    if ranks.world_size() > 1:
        raise InputError("train() works in one process. Under torch.distributed call Method.step on each rank's rows.")
    setting = prepare(run)
    state = start(setting)
    is_auto = isinstance(run.drop_rate, str)
    check_breakdown(run.rate if is_auto else max(run.rate, most_dropped(run)))
    try:
        if folder is not None:
            folder.create()
            if folder.finished:  # by another process, while this one loaded the data
                return read_result(folder)
        with (
            reproducible(run.seed, setting.device),
            make_progress(show, run_label(run), run.epochs) as progress,
        ):
            picked: dict[str, Any] = {}
            if is_auto:
                pick = settle_rate(setting, candidate, folder.path if folder is not None else None, progress.note)
                setting, picked = at_rate(setting, pick.rate), {"pick": pick.to_json()}
            saved = folder.load_state() if folder is not None else None
            if saved is not None:
                state.restore(*saved)
            probe = Probe.of(setting) if bounds else None
            trainer = Trainer(setting, state, folder, progress, probe, save_every)
            trainer.train()
        return finish(replace(setting, run=run), state, folder, {**trainer.manner(), **picked})
    finally:
        if folder is not None:
            folder.release()


def start(setting: Setting) -> State:
    """The state at the beginning."""
    require_engine(setting)
    networks = setting.make_networks()
    for network in networks:
        setting.method.require(network, min(setting.run.batch_size, len(setting.data.train)), setting.device)
        require_outputs(setting, network)
        require_statistics(setting, network)
    classes = setting.data.outputs if setting.data.task == "classification" else 0
    return State(
        networks,
        [make_optimizer(network, setting.run.learning_rate) for network in networks],
        Ledger.empty(len(setting.data.train), setting.device),
        Tally.empty(classes, setting.device),
        setting.fingerprint(),
    )


def candidate(setting: Setting) -> Trainer:
    """A run of which nothing is shown or written."""
    return Trainer(setting, start(setting), None, Progress(), None, math.inf)


class Trainer:
    """A run at work: state on the one side, folder, display and probe on the other."""

    def __init__(
        self,
        setting: Setting,
        state: State,
        folder: RunFolder | None,
        progress: Progress,
        probe: Probe | None,
        save_every: float,
    ) -> None:
        self.setting, self.run, self.method, self.state = setting, setting.run, setting.method, state
        self.folder, self.progress, self.probe = folder, progress, probe
        self.save_every = save_every
        self.feed = Feed(setting.data.train, setting.device, augment=setting.run.augment)
        self.engine, obstacle = make_engine(setting, state, self.feed)
        if obstacle:
            progress.note(f"steps run one by one: {obstacle}")
        self.test_inputs = setting.data.test.inputs
        self.test_targets = setting.data.test.targets.to(setting.device)
        self.clock = self.saved_at = self.begun_at = time.monotonic()
        self.waited_for_device = 0.0  # at the ends of the epochs

    def train(self, until: int | None = None) -> None:
        """All epochs that are left, or those up to ``until``."""
        with stop_request() as stop:
            while self.state.epoch <= (self.run.epochs if until is None else until):
                for _ in self.steps():
                    if stop.made:
                        self.save()
                        raise Interrupted(f"stopped in epoch {self.state.epoch} after step {self.state.step}")
                    if time.monotonic() - self.saved_at >= self.save_every:
                        self.save()
                self.end_epoch()

    def steps(self) -> Iterator[None]:
        """The steps of this epoch that are left."""
        state, epoch = self.state, self.state.epoch
        for optimizer in state.optimizers:
            set_learning_rate(optimizer, self.setting.learning_rate(epoch))
        for _ in self.engine_steps(epoch_order(self.run.seed, epoch, self.epoch_rows())):
            state.step += 1
            self.progress.step((epoch - 1) * self.setting.steps_an_epoch + state.step, self.total_steps)
            yield

    def engine_steps(self, order: Tensor) -> Iterator[None]:
        """The engine's steps over ``order``; where a graph can't be had after all, one by one."""
        try:
            yield from self.engine.steps(order)
        except CaptureError as error:
            if self.run.engine == "captured":
                raise
            self.progress.note(f"steps run one by one: {error}")
            self.engine = PlainEngine(self.setting, self.state, self.feed)
            yield from self.engine.steps(order)

    @property
    def total_steps(self) -> int:
        return self.run.epochs * self.setting.steps_an_epoch

    def epoch_rows(self) -> Tensor:
        """The rows of this epoch: all of them, unless the method chose some at its start."""
        state, everything = self.state, torch.arange(len(self.feed), device=self.setting.device)
        if state.step == 0:
            outputs = cache(lambda network: predict(network, self.feed.inputs, self.setting.device))
            targets = self.feed.targets.to(self.setting.device)
            rate = self.setting.drop_rate(state.epoch, 0)
            state.epoch_rows = self.method.epoch_rows(outputs, state.networks, targets, rate)
            if state.epoch_rows is not None:
                absent = torch.ones_like(everything, dtype=torch.bool)
                absent[state.epoch_rows] = False
                scores = self.method.scores(outputs(state.networks[0]), targets)
                state.ledger.record_absent(everything[absent], scores.values[absent] if scores else None)
                state.tally.add_absent(targets[absent], len(state.networks))
        return everything if state.epoch_rows is None else state.epoch_rows

    def end_epoch(self) -> None:
        """Test, write the record, and turn to the next epoch."""
        state, ready_at = self.state, time.monotonic()
        figures = state.tally.read()
        self.waited_for_device += time.monotonic() - ready_at
        if not math.isfinite(figures["loss"]) or not state.is_finite():
            raise GradsieveError(
                f"The loss or a weight became NaN or infinite in epoch {state.epoch}: the training has diverged. Try a "
                f"smaller learning_rate (it was {self.run.learning_rate})."
            )
        tests = test_metric(self.setting.data.task, state.networks, self.test_inputs, self.test_targets)
        record = {
            "epoch": state.epoch,
            "metric": METRICS[self.setting.data.task][0],
            "test": statistics.fmean(tests),
            "test_of_network": tests,
            "drop_rate": self.setting.drop_rate(state.epoch, max(0, state.step - 1)),
            "learning_rate": self.setting.learning_rate(state.epoch),
            **figures,
        }
        if self.probe is not None:
            record["gradient_error"] = self.probe.measure(state.networks[0])
        record["seconds"] = self.elapsed()
        state.history.append(record)
        state.tally.clear()
        state.epoch, state.step = state.epoch + 1, 0
        if self.folder is not None:
            self.folder.write_metrics(state.history)
        self.progress.epoch(record)

    def manner(self) -> dict[str, Any]:
        """How the steps ran: the precision, the engine, what it compiled, and what it was bound by."""
        precision = real_precision(self.state.networks[0], self.setting.device, self.run.precision)
        compiled = {"compile_seconds": self.engine.programs.seconds} if self.engine.programs.made else {}
        return {"precision": precision, "engine": self.engine.name, **compiled, "bound": self.bound()}

    def bound(self) -> str:
        """What the steps waited for: data, the launches of the host, or the computation itself."""
        whole = time.monotonic() - self.begun_at
        if self.feed.waited > whole / 2:
            return "data"
        # A host that is never ahead of its device is what the device waits for.
        return "launch" if self.setting.device.type == "cuda" and self.waited_for_device < whole / 20 else "compute"

    def elapsed(self) -> float:
        """Seconds of work on this run, those before a resume included."""
        now = time.monotonic()
        self.state.seconds += now - self.clock
        self.clock = now
        return self.state.seconds

    def save(self) -> None:
        if self.folder is not None:
            self.elapsed()
            number = (self.state.epoch - 1) * self.setting.steps_an_epoch + self.state.step
            self.folder.save_state(number, self.state.tensors(), self.state.meta())
        self.saved_at = time.monotonic()


def run_label(run: Run) -> str:
    """A run in a few words."""
    corruption = "clean" if run.corruption == "none" else f"{run.corruption} {run.rate:g}"
    return f"{run.data} {corruption} {run.method}"
