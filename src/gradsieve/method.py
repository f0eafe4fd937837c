"""What every algorithm is made of: the loss, the scores, the selection, the exchange and the backward pass.

A step looks at a batch, decides which rows each network trains on, and leaves the gradient of those rows
in ``.grad``. Plain training is this class as it stands; a method overrides the one hook in which it
differs. Nothing here reads a value back from the device: how many rows stay depends on the rate alone.
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
from gradsieve.scores.loss import Criterion, row_losses
from gradsieve.scores.outputs import one_tensor
from gradsieve.scores.recall import FirstPass, Shielded, first_pass, take
from gradsieve.scores.row_gradients import RowPass
from gradsieve.selection import keep_smallest, mask_of

# "index": one forward over the batch, dropped rows leave the loss. "reforward": a forward to score, then a
# new one over the kept rows, so that BatchNorm never sees the others (`gradsieve reproduce passes` measures both).
Passes = Literal["index", "reforward"]

# Options that are numbers: which of them are allowed, and how to say it.
Positive = Annotated[float, lambda value: value > 0, "a number above 0"]
OptionalShare = Annotated[float | None, lambda value: 0 <= value <= 1, "a share from 0 to 1"]
Count = Annotated[int, lambda value: value >= 0, "a whole number from 0 up"]


class Scores(NamedTuple):
    """What the rows are ranked by, smallest first."""

    values: Tensor  # (N,)
    ties: Tensor | None = None  # (N,) decides between equal values


class Look(NamedTuple):
    """What one network says about a batch."""

    outputs: Tensor | None  # (N, ...)
    scores: Scores | None  # None where a method does not rank
    trains: bool = False  # whether the outputs carry the graph of the pass that trains
    first_pass: FirstPass | None = None  # where the pass that trains can go on from it
    row_pass: RowPass | None = None  # where the gradients of the rows are at hand already


class Selection(NamedTuple):
    """What one network made of a batch."""

    scores: Tensor | None  # (N,) its own scores
    kept: Tensor  # (K,) the rows that it trained on, as positions in the batch
    loss: Tensor  # their mean loss


@dataclass(frozen=True)
class Method:
    """Train on every row."""

    criterion: Criterion
    _: KW_ONLY
    passes: Passes = "reforward"
    scoring: Scoring = "eval"
    balanced: bool = False  # trim every class alike

    tasks: ClassVar[tuple[Task, ...]] = ("classification", "regression")
    networks: ClassVar[int] = 1
    drops_rows: ClassVar[bool] = False  # whether the drop rate means anything to it
    paper_passes: ClassVar[Literal["auto", "index", "reforward"]] = "index"  # what the authors' code does
    decides_on_host: ClassVar[bool] = False  # whether a step reads from the device: such steps can't be captured
    schedule: ClassVar[str] = "ramp"  # how its drop rate sets in where a run does not say

    def __post_init__(self) -> None:
        check_options(self)

    # The hooks.

    def require(self, network: nn.Module, rows: int, device: torch.device) -> None:
        """Refuse, before the first step, what cannot work with this network and batches of ``rows`` rows."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row, (N,)."""
        return row_losses(self.criterion, outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Scores | None:
        """How suspicious each row is, by what the network puts out."""
        return None

    def look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        """Score a batch in a pass of its own, before the one that trains."""
        first = first_pass(network, inputs, self.scoring)
        return Look(first.outputs, self.scores(first.outputs, targets), first_pass=first)

    def train_look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        """Score a batch in the one pass that trains."""
        return self.plain_look(network, inputs, targets)

    def select(self, scores: Scores | None, targets: Tensor, drop_rate: float) -> Tensor:
        """The rows that one network would keep, ascending."""
        if scores is None:
            return torch.arange(len(targets), device=targets.device)
        classes = targets if self.balanced else None
        return keep_smallest(scores.values, drop_rate, ties=scores.ties, classes=classes)

    def choose(self, looks: Sequence[Look], targets: Tensor, drop_rate: float) -> list[Tensor]:
        """The rows that each network trains on."""
        return self.exchange([self.select(look.scores, targets, drop_rate) for look in looks])

    def exchange(self, kept: list[Tensor]) -> list[Tensor]:
        """Who trains on whose selection."""
        return kept

    def learn(self, network: nn.Module, look: Look, inputs: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
        """Leave the gradient of ``rows`` in ``.grad``, from the look where that was the pass; return their loss."""
        is_kept = mask_of(rows) if look.trains else None
        if is_kept is not None and look.outputs is not None:  # no row is moved
            losses = self.losses(Shielded.apply(look.outputs, is_kept), targets).where(is_kept, 0.0)
            return self.backward(network, losses, len(rows))
        if look.trains and look.outputs is not None:
            outputs = take(look.outputs, rows)
        elif look.first_pass is not None:
            outputs = look.first_pass.again(rows)
        else:
            outputs = network(take(inputs, rows))
        return self.backward(network, self.losses(outputs, take(targets, rows)))

    def backward(self, network: nn.Module, losses: Tensor, rows: int | None = None) -> Tensor:
        """Leave the gradient of the mean loss over the kept rows of all ranks in ``.grad``; return that loss.

        ``rows``: how many they are here, where the others have a loss of 0.
        """
        count = ranks.total(len(losses) if rows is None else rows, losses.device)
        loss = losses.sum() / max(1, count)
        if count:  # else no rank has a row: no gradient, and the optimizer skips the step
            loss.backward()
        return loss.detach()

    def finish(self, network: nn.Module) -> None:
        """The last word on the whole gradient, after the ranks' parts were added up."""

    def epoch_rows(
        self,
        outputs: Callable[[nn.Module], Tensor],
        networks: Sequence[nn.Module],
        targets: Tensor,
        drop_rate: float,
    ) -> Tensor | None:
        """The rows to draw this epoch's batches from, given ``outputs(network)`` over all rows; None: all."""
        return None

    # The algorithm.

    def step(self, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, drop_rate: float) -> list[Selection]:
        """Look, choose, and leave each network's gradient in ``.grad``: one batch, without the update."""
        if not self.drops(drop_rate, ranks.total(len(targets), targets.device)):
            see = self.plain_look  # the pass that trains gives the scores too, and equals plain training bit for bit
        else:
            see = self.train_look if self.passes_of(networks) == "index" else self.look
        looks = [see(network, inputs, targets) for network in networks]
        kept = self.choose(looks, targets, drop_rate)
        selections = []
        for network, look, rows in zip(networks, looks, kept, strict=True):
            loss = targets.new_zeros((), dtype=torch.float32)
            if len(rows) or ranks.meets_ranks(network):
                loss = self.learn(network, look, inputs, targets, rows)
            elif ranks.world_size() > 1:
                ranks.total(0, targets.device)  # the other ranks count their rows and wait for ours
            selections.append(Selection(look.scores.values if look.scores else None, rows, loss))
        return selections

    def passes_of(self, networks: Sequence[nn.Module]) -> str:
        """The passes that these networks get."""
        return self.passes

    def plain_look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        """The forward pass that trains, with the scores that come for free."""
        outputs = one_tensor(network(inputs))
        return Look(outputs, self.scores(outputs.detach(), targets), trains=True)

    def drops(self, drop_rate: float, rows: int) -> bool:
        """Whether any of ``rows`` rows goes at this rate."""
        return self.drops_rows and keep_count(drop_rate, rows) < rows


class Exchange:
    """Two networks, each trained on the rows that the other one kept.

    The update line of the paper's Algorithm 3 prints no swap; its text and the authors' code do: a network's own
    mistakes in selecting must not feed back into it.
    """

    networks = 2

    def exchange(self, kept: list[Tensor]) -> list[Tensor]:
        return kept[::-1]


def require_own_rows(name: str, network: nn.Module, form: Scoring) -> None:
    """For methods that take each row's share of the gradient: BatchNorm over all ranks ties it to other ranks' rows."""
    if form == "train" and ranks.meets_ranks(network):
        raise InputError(
            f"{name} takes each row's gradient in train form, where BatchNorm over all ranks mixes it with rows of "
            "other ranks. Use scoring=eval where the method has it, batchnorm 'local', or the model option norm=group."
        )


def make_method(
    name: str, table: Mapping[str, type[Method]], criterion: Criterion, task: Task, options: Mapping[str, Any]
) -> Method:
    """The method of that name, after checking that it serves the task and knows the options."""
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
    """Every option must hold a value of the kind that its annotation names."""
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
