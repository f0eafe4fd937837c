"""The loss that you swap into your training loop: your criterion, over the rows of each batch that look right.

    robust = RobustLoss(nn.CrossEntropyLoss(), drop_rate=0.3)  # was: nn.CrossEntropyLoss()
    loss = robust(model(inputs), targets)

Loop, model and optimizer stay as they are. There is only one forward pass, so BatchNorm still sees every row. If you
can afford a second one, use ``robust_step``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast, get_args

import torch
from torch import Tensor

from gradsieve.dropin.checks import (
    TrimUnit,
    check_choice,
    check_classes,
    check_criterion,
    check_weights,
    refuse_batch,
    refuse_elements,
    row_numbers,
)
from gradsieve.dropin.judgement import Judgement, Value, judged_rows, known
from gradsieve.dropin.recorded import Recorded
from gradsieve.dropin.replay import Replays, pays
from gradsieve.dropin.scheduled import RateAt
from gradsieve.dropin.short import MOST_VALUES, Trim, short_form
from gradsieve.dropin.trimmed_loss import (
    Score,
    WithGradient,
    agreement,
    as_elements,
    averaged,
    check_batch,
    classes_second,
    keep_mask,
    keep_positions,
    loss_of_labels,
    loss_of_rows,
    mean_of_rows,
    ranking,
    ranking_of,
    reduction,
    sums,
)
from gradsieve.dropin.watch import watch
from gradsieve.errors import InputError
from gradsieve.ranks import world_size
from gradsieve.scores.loss import Criterion, ignored_label, name_wrong_label, unpack
from gradsieve.scores.loss_gradient import has_closed_mean, losses_and_gradient
from gradsieve.scores.recall import take

HELD_VALUES = 2**20  # the most output values that are held until the next call


class RobustLoss(Recorded):
    """``criterion`` over the ``1 - drop_rate`` share of each batch with the smallest gradient (or loss).

    In eval mode, it is the criterion's plain mean over all rows.

    - ``criterion``: a loss of torch, as a module or a function, or any function of (outputs, targets) that gives a
      value for each row.
    - ``drop_rate``: the share to drop; a number, or a function of the time T = 1, 2, ... (``step()`` moves it on, as in
      a learning-rate scheduler).
    - ``score``: what rows are ranked by, "gradient" (PRL(L)) or "loss" (SPL).
    - ``unit``: "row" drops whole rows, "element" single pixels, tokens or outputs.
    - ``balanced``: drop the same share of every class.
    - ``ramp``: raise a ``drop_rate`` that is a number linearly, over T = 1 to ``ramp``.
    - ``class_dim``: the dimension of the outputs that holds the classes: 1, as in torch's cross-entropy, or -1 for (N,
      T, C).
    - ``rows``: the size of the data set. ``robust(outputs, targets, rows=ids)`` then keeps a ledger of how often each
      row was dropped.
    """

    def __init__(
        self,
        criterion: Criterion,
        drop_rate: float | RateAt,
        *,
        score: Score = "gradient",
        unit: TrimUnit = "row",
        balanced: bool = False,
        ramp: int = 0,
        class_dim: int = 1,
        rows: int | None = None,
    ) -> None:
        check_choice("score", score, get_args(Score))
        check_choice("unit", unit, get_args(TrimUnit))
        check_choice("balanced", balanced, (True, False))
        check_criterion(criterion, unit)
        if isinstance(class_dim, bool) or not isinstance(class_dim, int):
            raise InputError(f"class_dim is {class_dim!r}, but must be the number of a dimension, 1 or -1 mostly.")
        super().__init__(drop_rate, ramp, rows)
        self.criterion = criterion
        self.score: Score = score
        self.unit: TrimUnit = unit
        self.balanced, self.class_dim = balanced, class_dim
        self.look_at_criterion()
        self.replays = Replays()

    def look_at_criterion(self) -> None:
        """Find what a call must know about the criterion; again if it is replaced or its options change."""
        check_criterion(self.criterion, self.unit)
        is_short = self.unit == "row" and not self.balanced
        self.ignored, self.adds_up = ignored_label(self.criterion), sums(self.criterion)
        self.short_form = short_form(self.criterion, self.score) if is_short else None
        self.is_as_seen = watch(self.criterion)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.look_at_criterion()  # a copy of the loss has its own copy of the criterion

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("criterion", "score", "unit", "balanced") and "is_as_seen" in self.__dict__:
            self.look_at_criterion()

    def take_rate(self, T: int) -> None:
        before = self.__dict__.get("_rate")
        super().take_rate(T)
        if before is not None and before != self.rate:
            self.replays.count_anew()

    def forward(self, outputs: Tensor, targets: Tensor, rows: Tensor | None = None) -> Tensor:
        """The mean loss of the rows that are kept. ``rows``: their numbers in the data set, for the ledger."""
        if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.dim() and targets.dim()):
            refuse_batch(outputs, targets)
        if targets.dtype == torch.uint8:  # torch's own losses take these too
            targets = targets.long()
        if not (torch.compiler.is_compiling() or self.is_as_seen()):
            self.look_at_criterion()
        if not self.training:
            return self.plain(outputs, targets)
        if self.awaits_time and not torch.compiler.is_compiling():
            self.wait(len(outputs), len(self.books().judged) if self.has_ledger else None)
        loss = self.short(outputs, targets) if self.short_form is not None and outputs.is_cpu else None
        if loss is None:
            loss = self.usual(outputs, targets)
        if rows is not None:
            self.enter(row_numbers(rows, outputs.device))
        return loss

    def usual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of outputs of any shape, by any criterion, on any device."""
        outputs, targets = self.arranged(outputs, targets)
        check_weights(self.criterion, targets)
        rows = len(outputs)
        if self.unit == "element":
            outputs, targets = as_elements(self.criterion, outputs, targets)
        classes = check_classes(targets) if self.balanced else None
        if self.is_closed(outputs, targets):
            return self.closed(outputs, targets)
        try:
            loss = self.by_autograd(outputs, targets, classes)
        except IndexError as error:
            if self.unit == "element" and outputs.dim() == 1:
                refuse_elements(outputs, targets, error)
            raise
        if len(outputs) > rows and reduction(self.criterion) == "batchmean":
            return loss * (len(outputs) / rows)  # batchmean has divided by the elements, each a row to it
        return loss

    def by_autograd(self, outputs: Tensor, targets: Tensor, classes: Tensor | None) -> Tensor:
        """The criterion itself, over the rows that are kept."""
        ranked = ranking(self.score, self.criterion, outputs, targets)
        judged = self.has_label(targets)
        if judged is None:
            kept = keep_positions(ranked, classes, self.rate, self.share)
            loss = loss_of_rows(self.criterion, take(outputs, kept), take(targets, kept))
        else:
            kept = keep_mask(ranked, classes, judged, self.share)
            loss = loss_of_labels(self.criterion, outputs, targets, kept, cast(int, self.ignored))
        agrees = self.agreement_of(outputs, targets)
        self.last = known(Judgement(known(ranked.values), kept, judged, agrees))
        return loss

    def may_be_closed(self) -> bool:
        """Whether closed forms may give loss and gradient. Not at rate 0, which is the plain criterion bit for bit."""
        if self.rate == 0 or self.adds_up or torch.compiler.is_compiling():
            return False
        return not torch._C._are_functorch_transforms_active() and world_size() == 1

    def short(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """The mean loss of the rows that are kept, by a short way: on a CPU, for whole rows; None if there is none."""
        if not targets.is_cpu or targets.requires_grad or outputs.numel() > MOST_VALUES or not self.may_be_closed():
            return None
        found = cast(Trim, self.short_form)(outputs, targets, self.share.of(len(outputs)))
        if found is None:
            return None
        # The outputs are few enough to be held, with a copy of the targets (a loader may reuse their memory);
        # everything else is computed when asked for. (Set in __dict__, because a module's own way of setting
        # attributes looks for parameters first.)
        held = self.score, self.criterion, self.ignored, outputs.detach(), targets.numpy().copy(), found.kept
        self.__dict__["last"] = partial(judged_rows, *held)
        return found.loss

    def is_closed(self, outputs: Tensor, targets: Tensor) -> bool:
        """Whether to take losses and gradients from closed forms: on a GPU, where they need one launch."""
        return outputs.is_cuda and self.may_be_closed() and has_closed_mean(self.criterion, outputs, targets)

    def closed(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of the rows that are kept, with its gradient, from closed forms; on a GPU in one launch."""
        with torch.no_grad():
            if pays(outputs):
                found = self.replays.judge(self.judge, outputs, targets, self.settings())
            else:
                found = self.judge(outputs, targets)
        loss, gradient, scores, kept, judged = found
        agrees = self.agreement_of(outputs, targets)
        self.last = known(Judgement(known(cast(Tensor, scores)), cast(Tensor, kept), judged, agrees))
        return cast(Tensor, WithGradient.apply(outputs, loss, gradient))

    def settings(self) -> Hashable:
        """What a judgement depends on besides the batch: tensors by their address, since a graph reads their values."""
        function, options = unpack(self.criterion)
        held = tuple(
            (name, value.data_ptr() if isinstance(value, Tensor) else value) for name, value in options.items()
        )
        return function, self.score, self.balanced, self.share, held, torch.is_autocast_enabled("cuda")

    def judge(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor | None]:
        """Loss, gradient at the outputs, scores, the rows that are kept, and the rows that have a label."""
        losses, gradient = losses_and_gradient(self.criterion, outputs, targets)
        ranked = ranking_of(self.score, self.criterion, losses, gradient)
        classes, judged = targets if self.balanced else None, self.has_label(targets)
        if judged is None:
            kept = keep_positions(ranked, classes, self.rate, self.share)
        else:
            kept = keep_mask(ranked, classes, judged, self.share)
        return *mean_of_rows(losses, gradient, kept), ranked.values, kept, judged

    def plain(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The criterion's own mean over all rows: what eval mode gives."""
        outputs, targets = self.arranged(outputs, targets)
        function, options = unpack(self.criterion)
        try:
            losses = self.criterion(outputs, targets)
        except (IndexError, RuntimeError) as error:
            name_wrong_label(error, function, outputs, targets, options)
            raise
        return averaged(self.criterion, losses, targets)

    def arranged(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        check_batch(outputs, targets, self.class_dim)
        return classes_second(self.criterion, outputs, targets, self.class_dim)

    def has_label(self, targets: Tensor) -> Tensor | None:
        """Which rows have a label, (M,); None if all have."""
        if self.ignored is None or targets.is_floating_point():
            return None
        counted = targets != self.ignored
        judged = counted if counted.dim() == 1 else counted.flatten(1).any(1)
        # In host memory, looking costs next to nothing. All ranks must take the same branch.
        can_look = targets.device.type == "cpu" and not torch.compiler.is_compiling() and world_size() == 1
        return None if can_look and bool(judged.all()) else judged

    def agreement_of(self, outputs: Tensor, targets: Tensor) -> Callable[[], Tensor | None]:
        outputs, labels = outputs.detach(), targets if targets.is_floating_point() else targets.clone()
        return self.later(outputs, partial(agreement, outputs, labels, self.ignored))

    def later(self, outputs: Tensor, ask: Callable[[], Value]) -> Callable[[], Value]:
        """A function that computes a value when asked for it, or now for large outputs, which are not held."""
        return ask if outputs.numel() <= HELD_VALUES else known(ask())

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}, T={self.T}, score={self.score}, unit={self.unit}"
