"""The training loop of fits: epochs, early stopping, a rate that is learnt on the way.

Steps, row order and ledger are those of ``gradsieve train``. The difference is that nothing is tested or saved during
training, that rows may have weights, and that held-out rows may tell when to stop.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradsieve.counts import keep_count
from gradsieve.errors import GradsieveError
from gradsieve.estimators.answers import answers, mean_outputs
from gradsieve.estimators.learnt_rate import learnt_rate
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rows import batch_rows
from gradsieve.method import Method
from gradsieve.training.epoch_rows import choose_rows
from gradsieve.training.feed import Batch, Feed, epoch_order
from gradsieve.training.ledger import Ledger
from gradsieve.training.setting import make_optimizer, set_learning_rate
from gradsieve.training.tally import Tally
from gradsieve.training.update import update


class ClassCounts(NamedTuple):
    """For each class, the rows that the last epoch saw and kept; empty for real-valued targets."""

    seen: Tensor
    kept: Tensor


class Trainer:
    """A plan in training."""

    def __init__(
        self,
        plan: Plan,
        method: Method,
        networks: Sequence[nn.Module],
        feed: Feed,
        rows_of: Callable[[int], Tensor],  # epoch -> the rows it visits
        held_out: Tensor,
        held_weights: Tensor | None = None,
    ) -> None:
        self.plan, self.method, self.networks, self.feed, self.rows_of = plan, method, networks, feed, rows_of
        self.held_out, self.held_weights = held_out, held_weights
        self.optimizers = [make_optimizer(network, plan.learning_rate) for network in networks]
        self.ledger = Ledger.empty(len(feed), feed.device)
        self.tally = Tally.empty(0, feed.device)
        self.epoch = 1  # the first one to train
        self.learnt_rate: float | None = None
        self.last_inputs: Tensor | None = None  # those of the last step
        self.watch(torch.arange(0), torch.arange(0))

    @property
    def last_rate(self) -> float:
        """The drop rate in the end: the one that was learnt, or else the plan's."""
        return self.plan.used_rate if self.learnt_rate is None else self.learnt_rate

    def watch(self, rows: Tensor, targets: Tensor) -> None:
        """Count on these rows, all or a sample, how much of each class an epoch keeps."""
        if targets.is_floating_point():
            rows = targets = torch.arange(0)  # real-valued targets have no classes
        self.watched, self.watched_classes = rows.to(self.feed.device), targets
        self.before = self.watched_books()

    def watched_books(self) -> Tensor:
        """How often the watched rows were judged and dropped, (2, n)."""
        return torch.stack([self.ledger.judged[self.watched], self.ledger.dropped[self.watched]])

    def of_class(self) -> ClassCounts:
        """What the last epoch saw and kept of each class. Read from the ledger, so that no step has to count."""
        judged, dropped = (self.watched_books() - self.before).cpu().long()
        classes = self.plan.outputs if self.plan.task == "classification" else 0
        seen, kept = torch.zeros(2, classes, dtype=torch.int64)
        seen.index_add_(0, self.watched_classes, judged)
        kept.index_add_(0, self.watched_classes, judged - dropped)
        return ClassCounts(seen, kept)

    def epochs(self) -> Iterator[dict[str, Any]]:
        """Train; yields a record for each epoch. Ends with the weights that held-out rows, if any, found best."""
        best, best_epoch, best_weights = math.inf, 0, None
        began = time.monotonic()
        for epoch, rate in list(enumerate(self.plan.rates(), start=1))[self.epoch - 1 :]:
            rate = rate if self.learnt_rate is None else self.learnt_rate
            loss = self.train_epoch(epoch, rate)
            if epoch in self.plan.learning_epochs():
                self.learnt_rate = self.learn_rate(epoch)
                best = math.inf  # scores at another rate are means over other rows: not comparable
            if not math.isfinite(loss):
                raise self.diverged(f"The loss became NaN or infinite in epoch {epoch}")
            learning_rate = self.plan.learning_rate_of(epoch)
            record = {"epoch": epoch, "loss": loss, "drop_rate": rate, "learning_rate": learning_rate}
            if len(self.held_out):
                record["validation"] = score = self.validate()
                if score < best:
                    best, best_epoch = score, epoch
                    best_weights = [copy.deepcopy(network.state_dict()) for network in self.networks]
            yield record | {"seconds": time.monotonic() - began}
            # While the drop rate rises, networks see more wrong rows: those epochs do not count as patience.
            if len(self.held_out) and epoch - max(best_epoch, self.plan.ramp_epochs) >= self.plan.patience:
                break
        if best_weights is not None:
            for network, weights in zip(self.networks, best_weights, strict=True):
                network.load_state_dict(weights)
        # A step's loss is computed before its update: that of the last step shows only in predictions.
        if self.last_inputs is not None and not self.answers_are_finite(self.last_inputs):
            raise self.diverged("After the last step, answers are NaN or infinite")

    def answers_are_finite(self, inputs: Tensor) -> bool:
        return all(bool(answers(network, inputs, self.feed.device).isfinite().all()) for network in self.networks)

    def diverged(self, what: str) -> GradsieveError:
        return GradsieveError(
            f"{what}: the training has diverged. Try a smaller learning_rate (it was {self.plan.learning_rate}), where "
            "you can set it; else look for inputs and targets that are far larger than the others."
        )

    def train_epoch(self, epoch: int, rate: float) -> float:
        """Train on the epoch's rows once; returns the mean loss of the rows that were kept."""
        self.before = self.watched_books()
        for optimizer in self.optimizers:
            set_learning_rate(optimizer, self.plan.learning_rate_of(epoch))
        for batch in self.batches(epoch, rate):
            selections = update(self.method, self.networks, self.optimizers, batch.inputs, batch.targets, rate)
            self.last_inputs = batch.inputs
            for selection in selections:
                self.ledger.record(batch.rows, selection.scores, selection.kept)
                self.tally.loss += selection.loss
                self.tally.steps += 1
        loss = float(self.tally.loss) / max(1, int(self.tally.steps))
        self.tally.clear()
        return loss

    def batches(self, epoch: int, rate: float) -> Iterator[Batch]:
        """The batches of an epoch; the next one is drawn only after the step on the one before."""
        order = epoch_order(self.plan.seed, epoch, self.epoch_rows(epoch, rate)).to(self.feed.device)
        return self.feed.batches(order, batch_rows(len(order), self.plan.batch_size))

    def epoch_rows(self, epoch: int, rate: float) -> Tensor:
        """The rows of this epoch: all that it visits, or those that the method chooses at its start."""
        rows, feed = self.rows_of(epoch), self.feed

        def outputs(network: nn.Module, part: slice) -> Tensor:
            return answers(network, feed.inputs[rows[part]], feed.device).to(feed.device)

        targets = feed.targets[rows].to(feed.device)
        books = (self.ledger, self.tally)
        chosen = choose_rows(self.method, self.networks, outputs, rows.to(feed.device), targets, rate, *books)
        return rows if chosen is None else chosen

    def learn_rate(self, epoch: int) -> float:
        """The share of an epoch's rows that seem wrong to the networks as they are now."""
        rows, feed, plan = self.rows_of(epoch), self.feed, self.plan
        outputs = mean_outputs(self.networks, feed.inputs[rows].cpu().numpy(), plan.task, plan.device)
        return learnt_rate(plan.task, feed.targets[rows].cpu().numpy(), outputs, plan.drop_rate)

    def validate(self) -> float:
        """The mean loss of the held-out rows with the smallest loss, as many as the drop rate leaves.

        Held-out rows are as wrong as the others. By the mean over all, a network that fits wrong targets could win.
        """
        inputs, targets = self.feed.inputs[self.held_out], self.feed.targets[self.held_out].cpu()
        losses = (self.method.losses(answers(each, inputs, self.feed.device), targets) for each in self.networks)
        return float(torch.stack([trimmed_mean(each, self.last_rate, self.held_weights) for each in losses]).mean())


def trimmed_mean(losses: Tensor, rate: float, weights: Tensor | None) -> Tensor:
    """The mean of the smallest losses (N,), as many, or of as much weight (N,), as the drop rate leaves."""
    if weights is None:
        return losses.sort().values[: keep_count(rate, len(losses))].mean()
    order = losses.argsort(stable=True)
    ascending = weights[order]
    before = ascending.cumsum(0) - ascending
    counted = torch.minimum(ascending, ((1 - rate) * weights.sum() - before).clamp(min=0))  # the last in part
    return (losses[order] * counted).sum() / counted.sum()
