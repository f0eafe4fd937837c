"""Checks of a drop-in loss's arguments. Each raises an error that says how to fix the call."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from gradsieve.dropin.scheduled import Scheduled
from gradsieve.errors import InputError
from gradsieve.scores import loss
from gradsieve.scores.loss import BINARY, ELEMENTWISE, Criterion, takes_reduction, unpack
from gradsieve.scores.outputs import described, such_as

TrimUnit = Literal["row", "element"]


def refuse_batch(outputs: Any, targets: Any) -> None:
    for name, values in (("outputs", outputs), ("targets", targets)):
        if not isinstance(values, Tensor) or not values.dim():
            what = "a single number" if isinstance(values, Tensor) else described(values)
            way = such_as(name, values)
            raise InputError(f"{name} is {what}, but must be a tensor whose first dimension is the rows{way}.")


def refuse_elements(outputs: Tensor, targets: Tensor, error: IndexError) -> None:
    """Explain the failure of a criterion that needs columns: with unit='element', every output is a row of its own."""
    given = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
    raise InputError(
        f"criterion is given single {given} by unit='element', and fails: {error}. Pass one that gives a loss for each "
        "of them, without a mean over columns; or unit='row'."
    ) from error


def check_untrimmed(criterion: Criterion) -> None:
    """Raise unless the criterion is a loss, and none that drops rows already."""
    if isinstance(criterion, Scheduled):
        raise InputError(
            f"criterion is a {type(criterion).__name__}, which drops rows itself. Give the loss inside it: its "
            "attribute criterion."
        )
    loss.check_criterion(criterion)


def check_criterion(criterion: Criterion, unit: TrimUnit) -> None:
    """Raise unless the criterion is a loss that can be trimmed by this unit."""
    check_untrimmed(criterion)
    function, options = unpack(criterion)
    takes_reduction(function)  # fills a cache: a compiler could not trace the search for the answer
    if unit == "element" and any(function is known for known in BINARY):
        for name in ("weight", "pos_weight"):
            if options.get(name) is not None and options[name].numel() > 1:
                raise InputError(
                    f"criterion has a {name} for each column, which single elements do not know. "
                    "Use unit='row', or one number for all."
                )


def check_weights(criterion: Criterion, targets: Tensor) -> None:
    """Raise if the criterion has a weight for each row: rows are dropped, and the weights would not fit the others."""
    function, options = unpack(criterion)
    if not any(function is known for known in ELEMENTWISE):
        return
    for name in ("weight", "pos_weight"):
        value = options.get(name)
        if value is not None and value.dim() == targets.dim() and len(value) > 1:
            raise InputError(
                f"criterion has a {name} of shape {tuple(value.shape)}, one for each row, but rows are dropped. "
                "Give one for each column, or a function of (outputs, targets) that returns the weighted loss of each "
                "row and finds the weights in the targets."
            )


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless ``value`` is one of the choices, and of its type: 1 is not True."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise InputError(f"{name} is {value!r}, but must be {' or '.join(map(repr, choices))}.")


def check_classes(targets: Tensor) -> Tensor:
    if targets.is_floating_point() or targets.dim() != 1:
        raise InputError(
            f"balanced=True trims every class alike, but targets has shape {tuple(targets.shape)}, {targets.dtype}: "
            "a class for each row is needed. Leave it out, or trim elements (unit='element')."
        )
    return targets


def row_numbers(rows: Any, device: torch.device) -> Tensor:
    """Row numbers, from a list, an array or a tensor. Floats and booleans stay, for `check_row_numbers` to refuse."""
    try:
        numbers = torch.as_tensor(rows, device=device).flatten()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"rows is a {type(rows).__name__} that holds no row numbers ({error}).") from error
    return numbers if numbers.is_floating_point() or numbers.dtype == torch.bool else numbers.long()


def check_row_numbers(rows: Tensor, units: int, size: int) -> None:
    if rows.shape[0] != units or rows.dtype != torch.int64:
        raise InputError(
            f"rows has {rows.shape[0]} entries, {rows.dtype}, but {units} whole numbers are due: which rows of the "
            "data set these are. Weights go beside the targets, for the criterion to multiply by (docs/drop-in.md)."
        )
    if rows.device.type == "cpu" and not torch.compiler.is_compiling() and units:
        low, high = rows.min().item(), rows.max().item()
        if low < 0 or high >= size:
            raise InputError(
                f"rows goes from {low} to {high}, but the ledger has rows 0 to {size - 1}. "
                "Build the loss with rows=, the size of the data set."
            )
