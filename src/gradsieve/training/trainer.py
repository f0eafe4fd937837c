"""The training loop: epochs, tests, saved states. Nothing in it depends on a particular method."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.arguments import argument
from gradsieve.errors import GradsieveError
from gradsieve.metrics import METRICS
from gradsieve.training.agreement import Agreement
from gradsieve.training.engines import CaptureError, PlainEngine, make_engine, require_engine
from gradsieve.training.epoch_rows import choose_rows
from gradsieve.training.evaluate import predict, test_metric
from gradsieve.training.feed import Feed, epoch_order
from gradsieve.training.folder import RunFolder
from gradsieve.training.interrupt import Interrupted, stop_request
from gradsieve.training.ledger import Ledger
from gradsieve.training.probe import Probe
from gradsieve.training.progress import Progress
from gradsieve.training.rank_books import judges, merge, of_all_ranks, summed
from gradsieve.training.rank_start import ranks_of
from gradsieve.training.repeatable import one_at_a_time
from gradsieve.training.setting import Setting, fingerprint, make_optimizer, real_precision, set_learning_rate
from gradsieve.training.shared_folder import SharedFolder
from gradsieve.training.state import State
from gradsieve.training.tally import Tally
from gradsieve.training.trial import require_outputs, require_statistics

FORSAKEN_EPOCHS = 3  # epochs in a row with a forsaken class before a warning: early in a run it often comes back


def ready_networks(setting: Setting) -> list[nn.Module]:
    """The networks, after checks that each can be trained."""
    run, data, networks = setting.run, setting.data, setting.make_networks()
    row = data.train.inputs[:1].to(setting.device)
    for network in networks:
        with ranks.alone():  # trial passes of one row: nothing for ranks to share
            require_outputs(
                network, row, data.task, data.outputs, name=f"model {run.model!r}", row_name=f"one row of {run.data}"
            )
            require_statistics(setting, network)
        if ranks.world_size() > 1:
            ranks.norm_over_ranks(network, run.batchnorm)
        setting.method.require(network, min(run.batch_size, len(data.train)), setting.device)
    return networks


def start(setting: Setting) -> State:
    """The state before the first step."""
    require_engine(setting)
    with one_at_a_time:  # trial passes restore torch's random state, which other threads share
        networks = ready_networks(setting)
    classes = setting.data.outputs if setting.data.task == "classification" else 0
    return State(
        networks,
        [make_optimizer(network, setting.run.learning_rate) for network in networks],
        Ledger.empty(len(setting.data.train), setting.device),
        Tally.empty(classes, setting.device),
        fingerprint(setting.data.train),
        test_sha256=fingerprint(setting.data.test),
    )


def is_time_to_warn(history: list[dict[str, Any]]) -> bool:
    """Whether a class was forsaken in each of the last ``FORSAKEN_EPOCHS`` epochs, for the first time in this run."""
    forsaken = "".join("x" if record.get("forsaken") else "." for record in history)
    too_long = FORSAKEN_EPOCHS * "x"
    return forsaken.endswith(too_long) and too_long not in forsaken[:-1]


class Trainer:
    """Trains a run: moves its state on, and keeps its folder, display and probe up to date."""

    def __init__(
        self,
        setting: Setting,
        state: State,
        folder: RunFolder | SharedFolder | None,
        progress: Progress,
        probe: Probe | None,
        save_every: float,
        warns: bool = True,
    ) -> None:
        self.setting, self.run, self.method, self.state = setting, setting.run, setting.method, state
        self.folder, self.progress, self.probe = folder, progress, probe
        self.save_every = save_every
        self.warns = warns and ranks.is_first()
        self.feed = Feed(setting.data.train, setting.device, augment=setting.run.augment)
        self.engine, obstacle = make_engine(setting, state, self.feed)
        if obstacle:
            progress.note(f"steps run one by one: {obstacle}")
        self.test_inputs = setting.data.test.inputs
        self.test_targets = setting.data.test.targets.to(setting.device)
        self.saved_at = self.begun_at = time.monotonic()
        self.waited_for_device = 0.0  # seconds, at the ends of epochs
        self.agree = Agreement(save_every)
        self.order = torch.arange(0)  # the order of this epoch's rows
        self.merged = 0  # steps of this epoch that are in the ledgers of all ranks

    def train(self, until: int | None = None) -> None:
        """All epochs that are left, or those up to ``until``."""
        with stop_request() as stop:
            while self.state.epoch <= (self.run.epochs if until is None else until):
                for _ in self.steps():
                    stops, saves = self.agree(stop.made, time.monotonic() - self.saved_at >= self.save_every)
                    if stops or saves:
                        self.save()
                    if stops:
                        raise Interrupted(f"stopped in epoch {self.state.epoch} after step {self.state.step}")
                self.end_epoch()
            (stops,) = ranks.largest([stop.made])
            if stops:  # a signal after the last step that checked: callers that train many runs must stop as well
                self.save()
                raise Interrupted(f"stopped after epoch {self.state.epoch - 1}")

    def steps(self) -> Iterator[None]:
        """Take the steps of this epoch that are left."""
        state, epoch = self.state, self.state.epoch
        for optimizer in state.optimizers:
            set_learning_rate(optimizer, self.setting.learning_rate(epoch))
        self.order, self.merged = epoch_order(self.run.seed, epoch, self.epoch_rows()), state.step
        for _ in self.engine_steps(self.order):
            state.step += 1
            self.progress.step((epoch - 1) * self.setting.steps_an_epoch + state.step, self.total_steps)
            yield

    def engine_steps(self, order: Tensor) -> Iterator[None]:
        """The engine's steps over ``order``; where a step cannot be captured after all, one by one."""
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
        """The rows of this epoch: all of them, unless the method chooses some at its start."""
        state, everything = self.state, torch.arange(len(self.feed), device=self.setting.device)
        if state.step == 0:
            state.epoch_rows = choose_rows(
                self.method,
                state.networks,
                lambda network, part: predict(network, self.feed.inputs[part], self.setting.device),
                everything,
                self.feed.targets.to(self.setting.device),
                self.setting.drop_rate(state.epoch, 0),
                state.ledger,
                state.tally,
            )
        return everything if state.epoch_rows is None else state.epoch_rows

    def end_epoch(self) -> None:
        """Test, write the record, and move on to the next epoch."""
        state, ready_at = self.state, time.monotonic()
        self.merge_ledger()
        tally = summed(state.tally)
        figures = tally.read()
        self.waited_for_device += time.monotonic() - ready_at
        if not math.isfinite(figures["loss"]) or not state.is_finite():
            raise GradsieveError(
                f"The loss or a weight became NaN or infinite in epoch {state.epoch}: the training has diverged. Try a "
                f"smaller {argument('learning_rate')} (it was {self.run.learning_rate})."
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
            with ranks.alone():  # all ranks measure the same rows
                record["gradient_error"] = self.probe.measure(state.networks[0])
        forsaken = tally.forsaken() if self.method.drops_rows else ""
        if forsaken:
            record["forsaken"] = True
        record["seconds"] = state.elapsed()
        state.history.append(record)
        state.tally.clear()
        state.epoch, state.step = state.epoch + 1, 0
        if self.folder is not None:
            self.folder.write_metrics(state.history)
        self.progress.epoch(record)
        if self.warns and is_time_to_warn(state.history):
            warnings.warn(f"In epoch {record['epoch']}, {forsaken}", UserWarning, stacklevel=4)  # the caller of train()

    def manner(self) -> dict[str, Any]:
        """How the steps ran: precision, engine, seconds of compiling, and what bounded the speed."""
        precision = real_precision(self.state.networks[0], self.setting.device, self.run.precision)
        compiled = {"compile_seconds": self.engine.programs.seconds} if self.engine.programs.made else {}
        manner = {"precision": precision, "engine": self.engine.name, **compiled, "bound": self.bound()}
        return {**manner, "ranks": ranks_of(self.setting, self.state)} if ranks.world_size() > 1 else manner

    def bound(self) -> str:
        """What bounded the speed of the steps: data, kernel launches by the host, or the computation itself."""
        whole = time.monotonic() - self.begun_at
        if self.feed.waited > whole / 2:
            return "data"
        # If the host hardly ever waits for the device, the device waits for the host.
        return "launch" if self.setting.device.type == "cuda" and self.waited_for_device < whole / 20 else "compute"

    def merge_ledger(self) -> None:
        """Bring the ledgers of all ranks up to date with what the others entered since the last merge."""
        size, steps = min(self.run.batch_size, len(self.order)), range(self.merged, self.state.step)
        if ranks.world_size() > 1:
            merge(self.state.ledger, judges(self.order, size, steps, len(self.feed), ranks.world_size()))
        self.merged = self.state.step

    def save(self) -> None:
        """Save the state, unless the folder has it already."""
        if self.folder is not None and not self.state.is_kept:
            self.state.elapsed()
            self.merge_ledger()
            self.folder.save_state(of_all_ranks(self.state.tensors()), self.state.meta())
            self.state.keep()
        self.saved_at = time.monotonic()
