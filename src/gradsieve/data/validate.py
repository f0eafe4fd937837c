"""Checks of data before training; errors name the argument and its first bad row.

They run before any weight changes: a single NaN input spoils a network even if its row is dropped later, because a
zero gradient times NaN is NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradsieve.data.dataset import DataSet, Rows, Task
from gradsieve.errors import InputError


def validate(data: DataSet) -> None:
    """Raise InputError at the first thing about ``data`` that cannot be trained on or tested with."""
    if data.task not in ("classification", "regression"):
        raise InputError(f"task is {data.task!r}, but it is 'classification' or 'regression'.")
    least = 2 if data.task == "classification" else 1
    if data.outputs < least:
        raise InputError(f"output_names holds {data.outputs} names, but {data.task} needs at least {least}.")
    for name, rows in (("train", data.train), ("test", data.test)):
        check_inputs(f"{name}.inputs", rows.inputs)
        check_targets(f"{name}.targets", rows.targets, data.task, data.outputs)
        _check_lengths(name, rows)
    train, test = data.train.inputs, data.test.inputs
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise InputError(
            f"train.inputs has {_row_of(train)}, but test.inputs has {_row_of(test)}. "
            "Prepare both in the same way: one network reads them."
        )


def check_inputs(name: str, inputs: Tensor) -> None:
    """Require float32 rows, or uint8 images (N, C, H, W); not empty, and finite."""
    _check_rows(name, inputs)
    if inputs.dtype == torch.uint8:
        if inputs.ndim != 4:
            raise InputError(
                f"{name} is uint8 of shape {_shape(inputs)}, but uint8 stands for images (N, C, H, W). "
                f"Reshape the images, or pass other numbers as {name}.float()."
            )
    elif inputs.dtype != torch.float32:
        raise InputError(f"{name} is {_dtype(inputs)}, but inputs are float32 or uint8 images. Pass {name}.float().")
    if inputs.ndim < 2 or inputs[0].numel() == 0:
        raise InputError(f"{name} has the shape {_shape(inputs)}, but inputs are (N, ...) with N rows of features.")
    check_finite(name, inputs)


def check_targets(name: str, targets: Tensor, task: Task, outputs: int) -> None:
    """Require int64 classes (N,) from 0 to ``outputs`` - 1, or finite float32 targets (N, ``outputs``)."""
    _check_rows(name, targets)
    if task == "regression":
        if targets.dtype != torch.float32:
            raise InputError(f"{name} is {_dtype(targets)}, but regression targets are float32. Pass {name}.float().")
        if targets.ndim != 2 or targets.shape[1] != outputs:
            raise InputError(
                f"{name} has the shape {_shape(targets)}, but regression targets are (N, {outputs}): "
                f"one column per output name. A single column is {name}[:, None]."
            )
        check_finite(name, targets)
        return
    if targets.dtype != torch.int64 or targets.ndim != 1:
        raise InputError(
            f"{name} is {_dtype(targets)} of shape {_shape(targets)}, but class labels are int64 of shape "
            f"(N,). Pass class numbers, one per row, as {name}.long()."
        )
    outside = (targets < 0) | (targets >= outputs)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise InputError(
            f"{name}[{row}] is {int(targets[row])}, but there are {outputs} classes (0 to {outputs - 1}). "
            f"Correct or remove the row; {int(outside.sum())} of {len(targets)} rows are outside."
        )


def check_finite(name: str, values: Tensor) -> None:
    """Refuse NaN and infinity."""
    if not values.is_floating_point() or values.isfinite().all():
        return
    bad = ~values.isfinite().flatten(1).all(1) if values.ndim > 1 else ~values.isfinite()  # (N,)
    row = int(bad.nonzero()[0])
    value = values[row][~values[row].isfinite()].flatten()[0].item()
    raise InputError(
        f"{name}[{row}] holds {value}, but values must be finite. "
        f"Correct or remove the row; {int(bad.sum())} of {len(values)} rows are like it."
    )


def check_count(name: str, value: int, least: int) -> None:
    """Require a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} is {value!r}, but it must be a whole number from {least} up.")


def check_positive(name: str, value: float) -> None:
    """Require a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{name} is {value!r}, but must be a positive number.")


def check_seconds(name: str, value: float) -> None:
    """Require a number of seconds from 0 up; infinity stands for never."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError(f"{name} is {value!r}, but it must be a number of seconds from 0 up.")


def _check_rows(name: str, values: Tensor) -> None:
    if not isinstance(values, Tensor):
        raise InputError(f"{name} is a {type(values).__name__}, but a tensor is needed. Try torch.as_tensor.")
    if values.ndim == 0 or len(values) == 0:
        raise InputError(f"{name} has the shape {_shape(values)}: it holds no rows. Pass at least one.")


def _check_lengths(name: str, rows: Rows) -> None:
    if len(rows.inputs) != len(rows.targets):
        raise InputError(
            f"{name}.inputs has {len(rows.inputs)} rows, but {name}.targets has {len(rows.targets)}: "
            f"row {min(len(rows.inputs), len(rows.targets))} has no counterpart."
        )


def _shape(values: Tensor) -> tuple[int, ...]:
    return tuple(values.shape)


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _row_of(values: Tensor) -> str:
    return f"{_dtype(values)} rows of shape {tuple(values.shape[1:])}"
