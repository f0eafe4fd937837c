"""The loss of each row, however the criterion itself averages."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from gradsieve.errors import InputError

Criterion = Callable[..., Tensor]  # a module or function of (outputs, targets)

# Which function a loss module stands for, and which of its attributes are that function's options.
MODULES: dict[type[nn.Module], tuple[Criterion, tuple[str, ...]]] = {
    nn.CrossEntropyLoss: (F.cross_entropy, ("weight", "ignore_index", "label_smoothing")),
    nn.NLLLoss: (F.nll_loss, ("weight", "ignore_index")),
    nn.BCEWithLogitsLoss: (F.binary_cross_entropy_with_logits, ("weight", "pos_weight")),
    nn.BCELoss: (F.binary_cross_entropy, ("weight",)),
    nn.MSELoss: (F.mse_loss, ()),
    nn.L1Loss: (F.l1_loss, ()),
    nn.HuberLoss: (F.huber_loss, ("delta",)),
    nn.SmoothL1Loss: (F.smooth_l1_loss, ("beta",)),
}
LABEL_LOSSES = (F.cross_entropy, F.nll_loss)  # these leave out elements labelled -100 unless told another number
# These compare outputs and targets element by element; torch would silently broadcast other shapes.
BINARY = (F.binary_cross_entropy_with_logits, F.binary_cross_entropy)
ELEMENTWISE = (F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, *BINARY)


def check_criterion(criterion: Criterion) -> None:
    """Raise unless the criterion is a loss of two arguments, and not a class."""
    if not callable(criterion) or isinstance(criterion, type):
        hint = " Make one: it is a class." if isinstance(criterion, type) else ""
        raise InputError(
            f"criterion is {criterion!r}, but must be a loss: a function or module of (outputs, targets).{hint}"
        )
    asked = arguments(criterion)
    if len(asked) > 2:
        raise InputError(
            f"criterion asks for {len(asked)} arguments, {', '.join(asked)}, but is given two: outputs and targets. "
            "Pass a function of two that makes the others from them, such as lambda outputs, targets: "
            "F.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp(), reduction='none')."
        )


def row_losses(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each row, (N,): the mean over the row's elements, those with ``ignore_index`` left out.

    ``criterion`` is a function such as ``F.cross_entropy``, a ``functools.partial`` of one, a loss
    module, or anything of yours that gives at least one number per row.
    """
    function, options = unpack(criterion)
    check_rows(function, outputs, targets)
    outputs, targets = widened(outputs), widened(targets)
    try:
        elements = widened_state(per_element(function))(outputs, targets, **widened_options(options))
    except (IndexError, RuntimeError) as error:
        name_wrong_label(error, function, outputs, targets, options)
        raise
    if elements.dim() == 0 or elements.shape[0] != outputs.shape[0]:
        raise InputError(
            f"The loss gives shape {tuple(elements.shape)} for {len(outputs)} rows, but a loss per row is "
            "needed to tell the rows apart. Give it reduction='none', or return one value per row."
        )
    if elements.numel() > max(outputs.numel(), targets.numel()) and is_broadcast(outputs, targets, elements):
        raise InputError(
            f"outputs has shape {tuple(outputs.shape)} but targets {tuple(targets.shape)}, and the loss compares every "
            f"row with every other: it gives shape {tuple(elements.shape)}. Reshape one of them, for example "
            "targets.view_as(outputs)."
        )
    if elements.dim() == 1:
        return elements
    counted = labelled(function, targets, options)
    if counted is None:
        return elements.flatten(1).mean(1)
    return elements.flatten(1).sum(1) / that_count(elements, counted).flatten(1).sum(1).clamp(min=1)


def is_broadcast(outputs: Tensor, targets: Tensor, elements: Tensor) -> bool:
    """Whether torch has widened outputs and targets to a common shape, as it does for (N, 1) and (N,)."""
    try:
        return elements.shape == torch.broadcast_shapes(outputs.shape, targets.shape)
    except RuntimeError:  # they have none
        return False


def as_scores(losses: Tensor) -> Tensor:
    """Losses as scores: minus infinity becomes NaN, since such a row is broken and must not come first."""
    return losses.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=torch.nan)


def widened(values: Tensor) -> Tensor:
    """``values`` out of half precision: a loss needs more digits than the layers before it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def widened_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a loss whose outputs are ``widened``: torch wants class weights in the same precision."""
    return {name: widened(value) if isinstance(value, Tensor) else value for name, value in options.items()}


def widened_state(function: Criterion) -> Criterion:
    """The same for a module of the user's, which ``model.bfloat16()`` may have put in half precision."""
    if not isinstance(function, nn.Module):
        return function
    own = *function.named_parameters(), *function.named_buffers()
    wide = {name: each for name, value in own if (each := widened(value)) is not value}
    return (lambda outputs, targets: functional_call(function, wide, (outputs, targets))) if wide else function


def unpack(criterion: Criterion) -> tuple[Criterion, dict[str, Any]]:
    """The plain function behind a criterion, and its options (``reduction`` aside: rows need none)."""
    if isinstance(criterion, partial) and not criterion.args:
        function, options = unpack(criterion.func)
        options |= criterion.keywords
        options.pop("reduction", None)
        return function, options
    if isinstance(criterion, nn.Module) and type(criterion) in MODULES:  # a subclass may differ: not looked into
        function, names = MODULES[type(criterion)]
        return function, {name: getattr(criterion, name) for name in names}
    return criterion, {}


def ignored_label(criterion: Criterion) -> int | None:
    """The class label that a criterion leaves out of its mean, where it has one."""
    return ignored_by(*unpack(criterion))


def ignored_by(function: Criterion, options: dict[str, Any]) -> int | None:
    if "ignore_index" in options:
        return options["ignore_index"]
    if any(function is known for known in LABEL_LOSSES):
        return -100
    return getattr(function, "ignore_index", None)


def labels_that_count(criterion: Criterion, targets: Tensor) -> Tensor | None:
    """Which elements of the targets a criterion does not leave out; None where it leaves out none."""
    function, options = unpack(criterion)
    return labelled(function, targets, options)


def labelled(function: Criterion, targets: Tensor, options: dict[str, Any]) -> Tensor | None:
    """Which elements carry a class label, where a loss ignores one and targets are classes; None where all count."""
    ignored = None if targets.is_floating_point() else ignored_by(function, options)
    return None if ignored is None else targets != ignored


def that_count(losses: Tensor, counted: Tensor) -> Tensor:
    """Which of a criterion's values (N, ...) belong to ``counted`` labels: a value per label, or any number per row."""
    if losses.shape == counted.shape:
        return counted
    rows = counted.flatten(1).any(1) if counted.dim() > 1 else counted
    return rows.view(-1, *[1] * (losses.dim() - 1)).expand_as(losses)


def check_rows(function: Criterion, outputs: Tensor, targets: Tensor) -> None:
    """Outputs and targets must have as many rows, and the same shape where they are compared directly."""
    if outputs.dim() == 0 or targets.dim() == 0 or outputs.shape[0] != targets.shape[0]:
        raise InputError(
            f"outputs has shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}: "
            "the first dimension of both must be the rows of the batch."
        )
    if function is F.cross_entropy:
        check_labels(outputs, targets)
    elementwise = any(function is known for known in ELEMENTWISE)
    if elementwise and outputs.shape != targets.shape:
        raise InputError(
            f"outputs has shape {tuple(outputs.shape)} but targets {tuple(targets.shape)}: this loss "
            "compares them element by element. Reshape one of them, for example targets.view_as(outputs)."
        )
    if any(function is known for known in BINARY) and not targets.is_floating_point():
        raise InputError(f"targets is {targets.dtype}, but binary cross-entropy takes floats. Pass targets.float().")


def check_labels(outputs: Tensor, targets: Tensor) -> None:
    """Raise unless these are logits (N, C, ...) with classes (N, ...) or with probabilities of the logits' shape."""
    classes = outputs.shape[:1] + outputs.shape[2:]
    wanted = outputs.shape if targets.is_floating_point() else classes
    if outputs.dim() < 2 or targets.shape != wanted or (targets.dtype != torch.int64 and wanted is classes):
        way = ""
        if targets.shape == classes:
            way = " Pass targets.long()."
        elif targets.shape == (*classes[:1], 1, *classes[1:]):
            way = " Pass targets.squeeze(1)."
        raise InputError(
            f"outputs has shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}, {targets.dtype}, but "
            "cross-entropy takes logits (N, C, ...) with int64 classes (N, ...) or with probabilities (N, C, ...)."
            f"{way}"
        )


def name_wrong_label(
    error: Exception, function: Criterion, outputs: Tensor, targets: Tensor, options: dict[str, Any]
) -> None:
    """Say which label is out of range. Asked only when torch has failed: the check would read from the device."""
    counted = labelled(function, targets, options)
    if counted is None or outputs.dim() < 2:
        return
    outside = counted & ((targets < 0) | (targets >= outputs.shape[1]))
    if not outside.any():
        return
    place, classes = outside.nonzero()[0].tolist(), outputs.shape[1]
    value = int(targets[tuple(place)])
    raise InputError(
        f"targets[{', '.join(map(str, place))}] is {value}, but the outputs have {classes} classes (0 to "
        f"{classes - 1}). Correct the row, or pass ignore_index={value} to leave such rows out of the loss."
    ) from error


def per_element(function: Criterion) -> Criterion:
    """``function`` with its own averaging switched off, where it has any."""
    if isinstance(function, nn.Module) and hasattr(function, "reduction"):
        quiet = copy.copy(function)
        vars(quiet)["reduction"] = "none"
        return quiet
    return partial(function, reduction="none") if takes_reduction(function) else function


def takes_reduction(function: Criterion) -> bool:
    """Whether a function has an argument ``reduction``; cached."""
    return "reduction" in signature(function)


# For a compiler, which would else watch the signatures of every criterion there is: that is what
# torch.compiler.assume_constant_result does, after seconds of imports.
takes_reduction._dynamo_marked_constant = True  # type: ignore[attr-defined]


def arguments(function: Criterion) -> list[str]:
    """The names of a function's required arguments, in order; none if it has no signature."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in signature(function).values() if each.kind in places and each.default is each.empty]


def signature(function: Criterion) -> Mapping[str, inspect.Parameter]:
    try:
        return _signatures[function]
    except (KeyError, TypeError):  # not seen yet, or cannot be a key
        pass
    asked = function.forward if isinstance(function, nn.Module) else function  # a module's own call takes anything
    try:
        answer = inspect.signature(asked).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        answer = {}
    with suppress(TypeError):
        _signatures[function] = answer
    return answer


# A cache: inspecting a signature takes as long as the loss of a thousand rows. Weak: a criterion may hold large data.
_signatures: WeakKeyDictionary[Criterion, Mapping[str, inspect.Parameter]] = WeakKeyDictionary()
