"""The estimators' training loop on a table in files: it keeps its place and saves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from gradsieve.arguments import argument
from gradsieve.errors import InputError
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rows import batch_rows
from gradsieve.estimators.trainer import Trainer
from gradsieve.streams.feed import BlockFeed, Place
from gradsieve.training.feed import Batch
from gradsieve.training.folder import RunFolder
from gradsieve.training.interrupt import Interrupted, StopRequest
from gradsieve.training.state import State

SAVING = 20  # the time between saves is at least this multiple of the time that a save takes


class StreamTrainer(Trainer):
    """A plan in training on a table in files, in which ``rows`` rows have a target."""

    def __init__(self, plan: Plan, networks: Sequence[nn.Module], feed: BlockFeed, rows: int) -> None:
        nothing = torch.zeros(0, dtype=torch.int64)
        super().__init__(plan, plan.make_method(), networks, feed, lambda epoch: nothing, nothing)  # type: ignore[arg-type]
        self.blocks, self.batch_size = feed, batch_rows(rows, plan.batch_size)
        self.state = State(list(networks), self.optimizers, self.ledger, self.tally, data_sha256=feed.shards.sha256)
        self.place, self.stop = Place(), StopRequest()

    def keep_in(self, folder: RunFolder, save_every: float, began: float) -> None:
        """Save to ``folder`` every ``save_every`` seconds; the clock of the fit started at ``began``."""
        self.folder, self.save_every = folder, save_every
        self.saved_at, self.state.clock = time.monotonic(), began

    def batches(self, epoch: int, rate: float) -> Iterator[Batch]:
        """The rest of the epoch; between steps, save if it is time, and stop if asked to."""
        for batch, place in self.blocks.batches(epoch, self.batch_size, self.place):
            yield batch
            self.place = place
            self.state.step += 1
            if self.stop.made:
                self.save()
                raise Interrupted(f"stopped in epoch {epoch} after step {self.state.step}")
            if time.monotonic() - self.saved_at >= self.save_every:
                self.save()
        if not self.state.step:
            raise InputError(
                f"{self.blocks.shards.path}: fewer rows can be used than a batch has, {self.batch_size}. Give a "
                f"smaller {argument('batch_size')}, or look at the rows that were left out."
            )

    def train(self, stop: StopRequest, tell: Callable[[dict[str, Any]], None]) -> None:
        """All epochs that are left."""
        self.stop = stop
        for record in self.epochs():
            skipped = {"bad_rows": self.blocks.bad} if self.blocks.bad else {}
            record |= {"seconds": self.state.elapsed(), **skipped}
            self.state.history.append(record)
            self.state.epoch, self.state.step, self.place = record["epoch"] + 1, 0, Place()
            tell(record)
        self.save()

    def save(self) -> None:
        """Save the state, unless the folder already has it. Large states are saved less often."""
        if self.state.is_kept:
            return
        began = time.monotonic()
        self.state.elapsed()
        self.folder.save_state(self.state.tensors(), {**self.state.meta(), "place": list(self.place)})
        self.state.keep()
        self.saved_at = time.monotonic()
        self.save_every = max(self.save_every, SAVING * (self.saved_at - began))

    def restore(self) -> None:
        """Load the saved state, if there is one."""
        saved = self.folder.load_state()
        if saved is not None:
            tensors, meta = saved
            self.place = Place(*meta["place"])
            self.state.restore(tensors, meta)
            self.epoch = self.state.epoch
