"""The pure functions of a drop-in loss, from outputs and targets to the mean loss of what is kept.

There are two ways to leave rows out. If every row counts, it is by position: the rate alone says how many stay. If the
criterion ignores a label, only the device knows how many rows count: then the dropped rows get the ignored label, and
shapes stay as they are. Neither way reads a value back from a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gradsieve.counts import KeptShare
from gradsieve.errors import InputError
from gradsieve.ranks import gather_rows, sum_over_ranks, world_size
from gradsieve.scores.loss import LABEL_LOSSES, Criterion, as_scores, labels_that_count, row_losses, that_count, unpack
from gradsieve.scores.loss_gradient import is_divergence, loss_gradient_norm, norm_of_rows, ranks_as_loss
from gradsieve.scores.recall import take
from gradsieve.selection import first_rows, keep_smallest, lexical_order, place_in_class, smallest_if_untied
from gradsieve.training.ledger import Ledger

Score = Literal["gradient", "loss"]  # PRL(L) or SPL


class Ranking(NamedTuple):
    """What rows are ranked by, smallest first."""

    values: Tensor  # (M,)
    ties: Callable[[], Tensor] | None = None  # computes what breaks ties between equal values, (M,)

    def keys(self) -> list[Tensor]:
        return [self.values] if self.ties is None else [self.values, self.ties()]


# Shapes.


def classes_second(criterion: Criterion, outputs: Tensor, targets: Tensor, class_dim: int) -> tuple[Tensor, Tensor]:
    """Outputs (N, C, ...), as torch's losses take them; targets too if they are probabilities."""
    if class_dim == 1 or outputs.dim() < 3:
        return outputs, targets
    if has_labels(outputs, targets):
        return outputs.movedim(class_dim, 1), targets
    if takes_probabilities(criterion, targets):
        return outputs.movedim(class_dim, 1), targets.movedim(class_dim, 1)
    return outputs, targets


def as_elements(criterion: Criterion, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Every pixel, token or single output as a row of its own: (M, C) with (M,) or (M, C), or (M,) with (M,)."""
    if has_labels(outputs, targets):
        return outputs.movedim(1, -1).flatten(0, -2), targets.flatten()
    if takes_probabilities(criterion, targets):
        return outputs.movedim(1, -1).flatten(0, -2), targets.movedim(1, -1).flatten(0, -2)
    return outputs.flatten(), targets.flatten()


def has_labels(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are classes, one for each place of the outputs."""
    return not targets.is_floating_point() and targets.dim() == outputs.dim() - 1


def takes_probabilities(criterion: Criterion, targets: Tensor) -> bool:
    """Whether targets are probabilities of classes, or their logarithms."""
    function = unpack(criterion)[0]
    return targets.is_floating_point() and (function is F.cross_entropy or is_divergence(function))


def check_batch(outputs: Tensor, targets: Tensor, class_dim: int) -> None:
    """Raise if these cannot be a batch, with a hint that the criterion's own error would not give."""
    if outputs.device != targets.device:
        raise InputError(f"outputs is on {outputs.device}, but targets on {targets.device}. Move one of them.")
    if outputs.dim() > 2 and not -outputs.dim() <= class_dim < outputs.dim():
        raise InputError(f"class_dim is {class_dim}, but outputs has the shape {tuple(outputs.shape)}.")
    if class_dim == 1 and outputs.dim() > 2 and has_labels(outputs, targets):
        first = outputs.shape[:1] + outputs.shape[2:]
        if targets.shape != first and targets.shape == outputs.shape[:-1]:
            raise InputError(
                f"outputs has shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}: the classes seem to "
                "come last. Pass class_dim=-1, or move them to the second place."
            )


# How a criterion averages.


def reduction(criterion: Criterion) -> str | None:
    """The ``reduction`` of a criterion, if it has one."""
    if isinstance(criterion, partial):
        return criterion.keywords.get("reduction") or reduction(criterion.func)
    return getattr(criterion, "reduction", None)


def sums(criterion: Criterion) -> bool:
    """Whether a criterion adds up its elements where others take the mean."""
    return reduction(criterion) == "sum"


def class_weights(criterion: Criterion) -> Tensor | None:
    """The class weights of a criterion that takes a weighted mean."""
    function, options = unpack(criterion)
    if any(function is known for known in LABEL_LOSSES):
        return options.get("weight")
    return criterion.weight if isinstance(criterion, nn.NLLLoss) else None


# Which rows stay.


def ranking(score: Score, criterion: Criterion, outputs: Tensor, targets: Tensor) -> Ranking:
    """What PRL(L) or SPL ranks the rows by."""
    outputs = outputs.detach()
    if score == "loss":
        return Ranking(as_scores(known_losses(criterion, outputs, targets)))
    values = loss_gradient_norm(criterion, outputs, targets).detach()
    if ranks_as_loss(criterion):
        return Ranking(values)
    # L1 and Huber gradients saturate, and those of confident wrong classes nearly do: the loss breaks such ties.
    return Ranking(values, partial(known_losses, criterion, outputs, targets))


def known_losses(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """The rows' losses without a graph: a criterion may have parameters of its own."""
    with torch.no_grad():
        return row_losses(criterion, outputs, targets)


def ranking_of(score: Score, criterion: Criterion, losses: Tensor, gradient: Tensor) -> Ranking:
    """The same, from losses and gradients that are already computed."""
    if score == "loss":
        return Ranking(as_scores(losses))
    return Ranking(norm_of_rows(gradient), None if ranks_as_loss(criterion) else lambda: losses)


def keep_positions(ranked: Ranking, classes: Tensor | None, rate: float, share: KeptShare) -> Tensor:
    """The rows that ``keep_smallest`` keeps, ascending."""
    values, alone = ranked.values, world_size() == 1 and classes is None
    if alone and torch.compiler.is_compiling():  # a compiler cannot trace fractions
        return first_rows(ranked.keys(), share.of(values.shape[0]))
    if alone and values.device.type == "cpu" and len(values):
        kept = smallest_if_untied(values, share.of(len(values)))
        if kept is not None:  # no tie to break, so that no loss was needed
            return kept
    ties = ranked.ties() if ranked.ties is not None else None
    return keep_smallest(values, rate, ties=ties, classes=classes)


def keep_mask(ranked: Ranking, classes: Tensor | None, counted: Tensor, share: KeptShare) -> Tensor:
    """Which of the ``counted`` rows stay, (M,): as ``keep_smallest`` among them, one threshold over all ranks."""
    keys = ranked.keys()
    everyone = gather_rows([counted.to(torch.uint8), *keys, *([] if classes is None else [classes])])
    judged, keys = everyone.values[0].bool(), everyone.values[1 : 1 + len(keys)]
    if classes is not None:
        keys = [place_in_class(keys, everyone.values[-1]), *keys]
    # NaN sorts last and marks rows without a label; broken rows, which have a label, become infinity and come before.
    keys[0] = keys[0].nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).masked_fill(~judged, torch.nan)
    order = lexical_order(keys)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    kept = (place < share.of(judged.sum())) & judged
    return kept[everyone.own]


# Their loss.


def mean_of_rows(losses: Tensor, gradient: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of the ``kept`` rows (positions or a mask), and its gradient at all outputs."""
    if kept.dtype == torch.bool:
        count = kept.sum().clamp(min=1)  # a batch without labels has a loss of 0, not NaN
        return losses.where(kept, 0.0).sum() / count, (gradient / count).where(along(kept, gradient), 0.0)
    own = take(gradient, kept) / max(1, len(kept))
    return take(losses, kept).mean(), torch.zeros_like(gradient).index_copy_(0, kept, own)


class WithGradient(torch.autograd.Function):
    """A loss whose gradient at the outputs is known already. Both are copied: a graph's next replay overwrites them."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient.clone() if gradient.is_cuda else gradient)
        ctx.kind = outputs.dtype
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (gradients[0] * ctx.saved_tensors[0]).to(ctx.kind), None, None


def loss_of_rows(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """The criterion's own mean over the rows given, and over those of the other ranks."""
    if world_size() == 1:
        return averaged(criterion, criterion(outputs, targets), targets)
    rows = outputs.shape[0]
    # Without rows there is nothing to learn, but the other ranks wait for the backward pass of this one.
    loss = averaged(criterion, criterion(outputs, targets), targets) if rows else outputs.sum()
    return loss if sums(criterion) else loss * share_of_ranks(loss.new_tensor(rows, dtype=torch.float64))


def loss_of_labels(criterion: Criterion, outputs: Tensor, targets: Tensor, kept: Tensor, ignored: int) -> Tensor:
    """The criterion's own mean with every row that is not ``kept`` labelled as ``ignored``, over all ranks."""
    targets = targets.masked_fill(~along(kept, targets), ignored)
    # A dropped row's gradient is 0 times its output: without this, NaN if the output is NaN.
    losses = criterion(outputs.masked_fill(~along(kept, outputs), 0.0), targets)
    counted = targets != ignored
    # A batch without labels has a loss of 0, not NaN.
    loss = averaged(criterion, losses, targets).where(counted.any(), 0.0)
    if world_size() == 1 or sums(criterion):
        return loss
    weights = class_weights(criterion)
    if losses.dim():
        total = that_count(losses, counted).sum()
    elif weights is None:
        total = counted.sum()
    else:
        total = weights[targets.where(counted, 0)].where(counted, 0.0).sum()
    return loss * share_of_ranks(total.double())


def along(rows: Tensor, values: Tensor) -> Tensor:
    """A mask of rows, (N,), with the dimensions of ``values``, (N, ...)."""
    return rows.view(-1, *[1] * (values.dim() - 1))


def averaged(criterion: Criterion, losses: Tensor, targets: Tensor) -> Tensor:
    """The mean of a criterion's values over what has a label; a single value is already its own mean."""
    if losses.dim() == 0:
        return losses
    counted = labels_that_count(criterion, targets)
    if counted is None:
        return losses.mean()
    is_in = that_count(losses, counted)  # what is not in may be NaN: the mean of nothing
    return losses.where(is_in, 0.0).sum() / is_in.sum().clamp(min=1)


def share_of_ranks(count: Tensor) -> Tensor:
    """The factor for a rank's mean over ``count`` rows or labels that makes the average over ranks the global mean."""
    total = sum_over_ranks(count)
    return (world_size() * count / total.clamp(min=torch.finfo(total.dtype).tiny)).float()


# Reports about them.


def agreement(outputs: Tensor, targets: Tensor, ignored: int | None) -> Tensor | None:
    """For each row, the share of its labels that the network predicts, (M,); None if targets are not such labels."""
    has_places = targets.shape == outputs.shape[:1] + outputs.shape[2:]  # not so for sequences of another length (CTC)
    if not (has_labels(outputs, targets) and has_places):
        return None
    agrees = outputs.argmax(1) == targets
    if agrees.dim() == 1:
        return agrees
    counted = targets != ignored if ignored is not None else torch.ones_like(agrees)
    return (agrees & counted).flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)


def record(ledger: Ledger, rows: Tensor, scores: Tensor, judged: Tensor, kept: Tensor) -> None:
    """Enter a batch into the ledger of every rank: row numbers, scores, and two masks."""
    rows, scores, judged, kept = gather_rows([rows, scores.float(), judged.int(), kept.int()]).values
    # Not scores * judged: infinity times 0 is NaN.
    ledger.enter(rows, scores.where(judged > 0, 0.0), judged, judged - kept)
