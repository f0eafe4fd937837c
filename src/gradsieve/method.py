"""The base class of all methods: the loss, the scores, the selection, the exchange and the backward pass.

A step looks at a batch, decides which rows each network trains on, and leaves the gradient of those rows
in ``.grad``. Plain training is this class as it is; a method overrides the hook in which it differs.
Nothing here reads a value back from the device: how many rows are kept depends on the rate alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.counts import keep_count
from gradsieve.data.dataset import Task
from gradsieve.errors import InputError
from gradsieve.registry import unknown
from gradsieve.scores.form import Scoring
from gradsieve.scores.loss import BINARY, Criterion, row_losses, unpack
from gradsieve.scores.outputs import one_tensor
from gradsieve.scores.recall import FirstPass, Shielded, first_pass, take
from gradsieve.scores.row_gradients import RowPass
from gradsieve.selection import keep_smallest, mask_of

# "index": one forward pass over the batch, without the dropped rows in the loss. "reforward": one pass to score, then
# one over the kept rows, so that BatchNorm never sees the others (`gradsieve reproduce passes` measures both).
Passes = Literal["index", "reforward"]

# Options that are numbers: which values are allowed, and how an error says so.
Positive = Annotated[float, lambda value: value > 0, "a number above 0"]
OptionalShare = Annotated[float | None, lambda value: 0 <= value <= 1, "a share from 0 to 1"]
Count = Annotated[int, lambda value: value >= 0, "a whole number from 0 up"]


class Scores(NamedTuple):
    """The scores by which rows are ranked, smallest first."""

    values: Tensor  # (N,)
    ties: Tensor | None = None  # (N,) breaks ties between equal values


class Look(NamedTuple):
    """What one network computed on a batch before rows are chosen."""

    outputs: Tensor | None  # (N, ...)
    scores: Scores | None  # None if the method does not rank rows
    trains: bool = False  # whether the outputs belong to the pass that trains, with its graph
    first_pass: FirstPass | None = None  # the scoring pass, if the pass that trains can reuse it
    row_pass: RowPass | None = None  # if the rows' gradients are already known


class Selection(NamedTuple):
    """What one network did with a batch."""

    scores: Tensor | None  # (N,) the network's own scores; None if the method does not rank rows
    kept: Tensor  # (K,) the positions in the batch of the rows that it trained on
    loss: Tensor  # their mean loss


@dataclass(frozen=True)
class Method:
    """The base class: trains on all rows. Override a hook to make a method."""

    criterion: Criterion
    _: KW_ONLY
    passes: Passes = "reforward"
    scoring: Scoring = "eval"
    balanced: bool = False  # drop the same share of every class

    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    networks: ClassVar[int] = 1
    drops_rows: ClassVar[bool] = False  # whether it uses the drop rate
    paper_passes: ClassVar[Literal["auto", "index", "reforward"]] = "index"  # what the authors' code does
    decides_on_host: ClassVar[bool] = False  # whether a step reads from the device; such a step can't be captured
    schedule: ClassVar[str] = "ramp"  # the default schedule of its drop rate

    def __post_init__(self) -> None:
        check_options(self)

    # The hooks.

    def require(self, network: nn.Module, rows: int, device: torch.device) -> None:
        """Raise, before the first step, if the method cannot work with this network and batches of ``rows`` rows."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row, (N,)."""
        return row_losses(self.criterion, outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Scores | None:
        """How suspicious each row is, from the network's outputs; None if the method does not rank rows."""
        return None

    def look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        """Score a batch in a separate pass, before the one that trains."""
        first = first_pass(network, inputs, self.scoring)
        return Look(first.outputs, self.scores(first.outputs, targets), first_pass=first)

    def train_look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        """Score a batch in the one pass that trains."""
        return self.plain_look(network, inputs, targets)

    def select(self, scores: Scores | None, targets: Tensor, drop_rate: float) -> Tensor:
        """The positions of the rows that one network would keep, ascending."""
        if scores is None:
            return torch.arange(len(targets), device=targets.device)
        classes = targets if self.balanced else None
        return keep_smallest(
            one_per_row("scores", scores.values, targets), drop_rate, ties=scores.ties, classes=classes
        )

    def choose(self, looks: Sequence[Look], targets: Tensor, drop_rate: float) -> list[Tensor]:
        """The rows that each network trains on."""
        return self.exchange([self.select(look.scores, targets, drop_rate) for look in looks])

    def exchange(self, kept: list[Tensor]) -> list[Tensor]:
        """The rows that each network trains on, given those that each would keep."""
        return kept

    def learn(
        self, network: nn.Module, look: Look, inputs: Tensor, targets: Tensor, rows: Tensor, count: int
    ) -> Tensor:
        """Leave the gradient of ``rows`` in ``.grad``, from the look if that pass trains; return their loss.

        ``count``: how many rows all ranks keep.
        """
        if look.trains and look.outputs is not None:
            is_kept = mask_of(rows)
            if is_kept is not None:  # no row is moved
                losses = one_per_row("losses", self.losses(Shielded.apply(look.outputs, is_kept), targets), targets)
                return self.backward(network, losses.where(is_kept, 0.0), count)
            outputs = take(look.outputs, rows)
        elif look.first_pass is not None:
            outputs = look.first_pass.again(rows)
        else:
            outputs = network(take(inputs, rows))
        targets = take(targets, rows)
        return self.backward(network, one_per_row("losses", self.losses(outputs, targets), targets), count)

    def backward(self, network: nn.Module, losses: Tensor, count: int) -> Tensor:
        """Leave the gradient of the mean loss over the ``count`` kept rows of all ranks in ``.grad``; return that loss.

        ``losses``: of this rank's kept rows, or of all its rows with 0 for those that are dropped.
        """
        loss = losses.sum() / max(1, count)
        if count:  # otherwise no rank has a row: no gradient, and the optimizer skips the step
            loss.backward()
        return loss.detach()

    def finish(self, network: nn.Module) -> None:
        """Change the whole gradient, after those of the ranks were added up."""

    def epoch_rows(
        self,
        outputs: Callable[[nn.Module], Tensor],
        networks: Sequence[nn.Module],
        targets: Tensor,
        drop_rate: float,
    ) -> Tensor | None:
        """The rows to draw this epoch's batches from, given ``outputs(network)`` for all rows; None: all rows."""
        return None

    # The algorithm.

    def step(self, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, drop_rate: float) -> list[Selection]:
        """Score a batch, choose rows, and leave each network's gradient in ``.grad``; the update is the caller's."""
        # What is never dropped need not be counted, which over ranks is a message.
        if not self.drops_rows or not self.drops(drop_rate, ranks.total(len(targets), targets.device)):
            see = self.plain_look  # one pass that trains and gives the scores: plain training bit for bit
        else:
            see = self.train_look if self.passes_of(networks) == "index" else self.look
        looks = [see(network, inputs, targets) for network in networks]
        kept = self.choose(looks, targets, drop_rate)
        selections = []
        for network, look, rows in zip(networks, looks, kept, strict=True):
            loss, count = targets.new_zeros((), dtype=torch.float32), ranks.total(len(rows), targets.device)
            if len(rows) or ranks.meets_ranks(network):
                loss = self.learn(network, look, inputs, targets, rows, count)
            selections.append(Selection(look.scores.values if look.scores else None, rows, loss))
        return selections

    def passes_of(self, networks: Sequence[nn.Module]) -> str:
        """The passes to make with these networks: "index" or "reforward"."""
        return self.passes

    def plain_look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        """The forward pass that trains, with the scores that it gives for free."""
        outputs = one_tensor(network(inputs))
        return Look(outputs, self.scores(outputs.detach(), targets), trains=True)

    def drops(self, drop_rate: float, rows: int) -> bool:
        """Whether any of ``rows`` rows is dropped at this rate, by a method that drops rows at all."""
        return keep_count(drop_rate, rows) < rows


class Exchange:
    """Two networks, each trained on the rows that the other one kept.

    The update line of the paper's Algorithm 3 shows no swap, but its text and the authors' code have it: a network's
    own mistakes in selecting must not feed back into it.
    """

    networks = 2

    def exchange(self, kept: list[Tensor]) -> list[Tensor]:
        return kept[::-1]


def one_per_row(name: str, values: Tensor, targets: Tensor) -> Tensor:
    """What a hook gave, or an error if that is not one value for each row: of a mean, a mean would be taken again."""
    if values.shape != targets.shape[:1]:
        raise InputError(
            f"{name}(outputs, targets) gives the shape {tuple(values.shape)} for {len(targets)} rows, but must give "
            "one number per row, (N,). Leave out a mean over the rows (reduction='none')."
        )
    return values


def require_own_rows(name: str, network: nn.Module, form: Scoring) -> None:
    """Raise if a row's own gradient cannot be computed: under DataParallel, whose replicas have their own copies of the
    weights, or if BatchNorm over all ranks mixes rows with those of other ranks."""
    if isinstance(network, nn.DataParallel):
        raise InputError(
            f"{name} takes each row's gradient, which cannot be followed into the replicas of nn.DataParallel. Pass "
            "the network inside, model.module."
        )
    if form == "train" and ranks.meets_ranks(network):
        raise InputError(
            f"{name} takes each row's gradient in train form, where BatchNorm over all ranks mixes it with rows of "
            "other ranks. Use scoring=eval where the method has it, batchnorm 'local', or the model option norm=group."
        )


def class_logits(name: str, criterion: Criterion, outputs: Tensor) -> Tensor:
    """The outputs, if they are logits (N, C, ...) of at least two classes; otherwise an error."""
    is_binary = any(unpack(criterion)[0] is known for known in BINARY)
    if is_binary or outputs.dim() < 2 or outputs.shape[1] < 2:
        given = "a criterion of yes or no" if is_binary else f"outputs of shape {tuple(outputs.shape)}"
        raise InputError(
            f"{name} asks which of several classes a network predicts. With {given} it cannot tell. "
            "Give the network an output for each class (for yes or no, two), and use cross-entropy."
        )
    return outputs


def make_method(
    name: str, table: Mapping[str, type[Method]], criterion: Criterion, task: Task, options: Mapping[str, Any]
) -> Method:
    """The method called ``name``, after a check that it serves the task and takes the options."""
    method = table[name]
    if task not in method.tasks:
        able = [other for other in table if task in table[other].tasks]
        raise InputError(
            f"{name} is made for {' and '.join(method.tasks)}, but this is a {task} task. "
            f"Methods for {task}: {', '.join(able)}."
        )
    fields = {field.name for field in dataclasses.fields(method)} - {"criterion"}
    for option in options:
        if option not in fields:
            raise InputError(unknown(f"option of {name}", option, dict.fromkeys(sorted(fields))))
    if options.get("balanced") and task != "classification":
        raise InputError("balanced=True trims every class alike, but this task has no classes. Leave it out.")
    return method(criterion, **options)


def check_options(method: Method) -> None:
    """Raise unless every option has a value that its annotation allows."""
    hints = get_type_hints(type(method), include_extras=True)
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        hint = hints[field.name]
        fits, wanted = True, ""
        if get_origin(hint) is Literal:
            fits, wanted = value in get_args(hint), " or ".join(map(repr, get_args(hint)))
        elif hint is bool:
            fits, wanted = isinstance(value, bool), "True or False"
        elif get_origin(hint) is Annotated:
            kind, within, wanted = get_args(hint)
            is_kind = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            is_left_out = value is None and NoneType in get_args(kind)
            fits = is_left_out or (is_kind and math.isfinite(cast(float, value)) and within(value))
        if not fits:
            raise InputError(f"{field.name} is {value!r}, but {type(method).__name__} takes {wanted}.")
