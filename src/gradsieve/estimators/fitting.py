"""Fitting networks to rows in memory: the training loop of the estimators and of ``gradsieve fit``.

Steps, row order and ledger are those of ``gradsieve train``. The difference is that nothing is tested or saved during
training, that rows may have weights, and that held-out rows may tell when to stop.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsieve import seeds
from gradsieve.counts import keep_count, part
from gradsieve.data import Rows
from gradsieve.errors import GradsieveError, InputError
from gradsieve.estimators.answers import answers, mean_outputs, row_scores
from gradsieve.estimators.learnt_rate import learnt_rate
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.rows import batch_rows, canonical_order, visits
from gradsieve.method import Method
from gradsieve.models.build import require_new
from gradsieve.scores.form import scoring_form
from gradsieve.scores.recall import first_pass
from gradsieve.selection import keep_smallest
from gradsieve.training.epoch_rows import choose_rows
from gradsieve.training.feed import Batch, Feed, as_float, epoch_order
from gradsieve.training.ledger import Ledger
from gradsieve.training.repeatable import drawn_from, one_at_a_time, refuse_inference_mode, reproducible
from gradsieve.training.setting import choose_device, make_optimizer, place, set_learning_rate
from gradsieve.training.tally import Tally, forsaken
from gradsieve.training.update import update

ONE_PASS = 128  # batches with fewer rows: dropped rows cost less in the training pass than a second pass does


class ClassCounts(NamedTuple):
    """For each class, the rows that the last epoch saw and kept; empty for real-valued targets."""

    seen: Tensor
    kept: Tensor


@dataclass(frozen=True)
class Fitted:
    """The result of a fit."""

    networks: list[nn.Module]  # in host memory and eval form; two if the method has two
    row_scores: NDArray[np.float64]  # (N,) how far each row's target is from the predictions, mean over the training
    kept: NDArray[np.bool_]  # (N,) the rows of smallest score, as many as the drop rate leaves
    ledger: Ledger  # in host memory
    drop_rate: float  # the last one
    history: list[dict[str, Any]]  # a record for each epoch
    of_class: ClassCounts

    def forsaken(self, names: Sequence[Any] | None = None) -> str:
        """A warning if the last epoch dropped nearly all rows of a class; else empty."""
        sentence = forsaken(*self.of_class, names)
        return sentence and f"In epoch {self.history[-1]['epoch']}, {sentence}"


def fit_networks(
    plan: Plan,
    inputs: NDArray,  # (N, ...) float32, or uint8 images (N, C, H, W)
    targets: NDArray,  # (N,) int64 classes, or (N, q) float32
    make_network: Callable[[int], nn.Module],  # given its number: a method may need two
    weights: NDArray | None = None,  # (N,) above 0
    tell: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Fitted:
    """Fit the networks of the plan's method to scaled rows. The order of the rows makes no difference."""
    rows = Rows(torch.from_numpy(inputs), torch.from_numpy(targets))
    order = canonical_order(inputs, targets, weights)
    trainer = make_trainer(plan, rows, order, make_network, weights)
    method, networks, device = trainer.method, trainer.networks, trainer.feed.device
    with reproducible(plan.seed, device):
        history = [tell(record) or record for record in trainer.epochs()]
    ledger = trainer.ledger.cpu()
    scores = row_scores(method, networks, rows, order, ledger, device)
    kept = torch.zeros(len(scores), dtype=torch.bool)
    classes = rows.targets if method.balanced else None
    rate = plan.used_rate if trainer.learnt_rate is None else trainer.learnt_rate
    kept[keep_smallest(scores, rate, classes=classes)] = True
    networks = [network.cpu().eval() for network in networks]
    return Fitted(networks, scores.numpy(), kept.numpy(), ledger, rate, history, trainer.of_class())


def make_trainer(
    plan: Plan, rows: Rows, order: Tensor, make_network: Callable[[int], nn.Module], weights: NDArray | None = None
) -> Trainer:
    """A plan ready to train on the rows in ``order``."""
    device, method = choose_device(plan.device), plan.make_method()
    held_out, order = split(order, plan)
    networks = [start(plan, make_network, number, rows.inputs, device) for number in range(method.networks)]
    batch = batch_rows(len(order), plan.batch_size)
    for network in networks:
        method.require(network, batch, device)
    if batch < ONE_PASS and "passes" not in plan.method_options:
        method = in_one_pass(method, networks, as_float(rows.inputs[:1].to(device)))
    held_weights = None if weights is None else torch.from_numpy(weights)[held_out]
    rows_of = visits(order, weights, plan.seed)
    trainer = Trainer(plan, method, networks, Feed(rows, device), rows_of, held_out, held_weights)
    trainer.watch(torch.arange(len(rows)), rows.targets)
    return trainer


def in_one_pass(method: Method, networks: Sequence[nn.Module], row: Tensor) -> Method:
    """The method with one forward pass instead of two, if its networks treat every row by itself: then both give the
    same but for rounding."""
    can = method.drops_rows and method.passes == "reforward" and type(method).look is Method.look
    is_alone = can and not any(first_pass(network, row, method.scoring).rest for network in networks)
    return replace(method, passes="index") if is_alone else method


def split(order: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """The rows held out for early stopping, and those to train on."""
    if not plan.validation_fraction:
        return order[:0], order
    count = max(1, part(plan.validation_fraction, len(order)))
    if count >= len(order):
        raise InputError(
            f"validation_fraction {plan.validation_fraction} of {len(order)} rows leaves none to train on. "
            "Give more rows, or early_stopping=False."
        )
    shuffled = order[torch.randperm(len(order), generator=seeds.generator(plan.seed, "validation"))]
    return shuffled[:count], shuffled[count:]


def start(
    plan: Plan, make_network: Callable[[int], nn.Module], number: int, inputs: Tensor, device: torch.device
) -> nn.Module:
    """A new network, from a random stream of its own, checked to give the right outputs for a row."""
    refuse_inference_mode()
    with drawn_from(plan.seed, number):
        network = require_new("module", make_network(number))
        network = place(network, device, "fp32").float()  # like the rows, whatever a user's module is
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("module has no trainable parameter.")
    try:
        with one_at_a_time, torch.random.fork_rng(devices=[]), torch.no_grad(), scoring_form(network, "eval"):
            answer = network(as_float(inputs[:1].to(device)))
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        shape = (1, *inputs.shape[1:])
        raise InputError(f"module cannot read one row, a tensor of shape {shape} ({reason}).") from error
    shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
    if shape != (1, plan.outputs):
        wanted = (
            f"a tensor of (1, {plan.outputs}): one number per {'class' if plan.task == 'classification' else 'target'}"
        )
        raise InputError(f"module answers one row with {shape}, but {plan.task} needs {wanted}.")
    return network.train()


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
        rate = self.plan.used_rate if self.learnt_rate is None else self.learnt_rate
        losses = (self.method.losses(answers(each, inputs, self.feed.device), targets) for each in self.networks)
        return float(torch.stack([trimmed_mean(each, rate, self.held_weights) for each in losses]).mean())


def trimmed_mean(losses: Tensor, rate: float, weights: Tensor | None) -> Tensor:
    """The mean of the smallest losses (N,), as many, or of as much weight (N,), as the drop rate leaves."""
    if weights is None:
        return losses.sort().values[: keep_count(rate, len(losses))].mean()
    order = losses.argsort(stable=True)
    ascending = weights[order]
    before = ascending.cumsum(0) - ascending
    counted = torch.minimum(ascending, ((1 - rate) * weights.sum() - before).clamp(min=0))  # the last in part
    return (losses[order] * counted).sum() / counted.sum()
