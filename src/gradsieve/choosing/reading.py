"""Predictions, targets and weights that a user gives: checked and as arrays, or one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gradsieve.errors import InputError, warn

Array = NDArray[np.float64]

SUM_TOLERANCE = 4e-3  # how far from 1 a row's probabilities may add up: a softmax in bfloat16 is that rough
LOGITS = 0.1  # if this share of predictions of 0 and 1 lie below -1 or above 2, and some below, they are logits


def read_rows(predictions: ArrayLike, targets: ArrayLike) -> tuple[Array, NDArray]:
    """Predictions (M, N, k), with targets (N,) int64 for classes or (N, k) for real outputs, checked.

    If targets are integers 0 and 1, a single column is the probability of class 1; that of class 0 is put before it.
    Real outputs and their targets are divided by the targets' interquartile range, so that all outputs weigh alike.
    """
    answers, given = to_numbers(predictions, "predictions").astype(np.float64), to_numbers(targets, "targets")
    if answers.ndim not in (2, 3):
        raise InputError(
            f"predictions have the shape {answers.shape}, but must be (models, rows) or (models, rows, k)."
        )
    if given.ndim not in (1, 2) or answers.shape[1] != len(given):
        raise InputError(f"targets have the shape {given.shape}, but predictions are of {answers.shape[1]} rows.")
    if not len(given):
        raise InputError(
            "There are no rows: predictions and targets are empty. Hold some rows out, so that they can vote."
        )
    if not np.isfinite(answers).all():
        model, row = np.argwhere(~np.isfinite(answers))[0, :2]
        raise InputError(f"predictions[{model}, {row}] is not finite. Leave a model that has diverged out.")
    is_label = given.dtype.kind in "iub"
    is_one_column = answers.shape[2:] in ((), (1,)) and given.shape[1:] in ((), (1,))
    if is_label and is_one_column and given.min() >= 0 and given.max() <= 1:
        answers, given = of_both_classes(answers.reshape(answers.shape[:2])), given.reshape(-1)
    if answers.ndim == 3 and given.ndim == 1 and is_label and answers.shape[2] > 1:
        check_probabilities(answers, given)
        return answers, given.astype(np.int64)
    answers, given = answers.reshape(*answers.shape[:2], -1), given.reshape(len(given), -1).astype(np.float64)
    if answers.shape[2] != given.shape[1]:
        hint = "" if is_label else " Labels of classes must be integers, 0 to C - 1."
        raise InputError(f"predictions have {answers.shape[2]} outputs a row, but targets {given.shape[1]}.{hint}")
    if not np.isfinite(given).all():
        row = int(np.argwhere(~np.isfinite(given))[0, 0])
        raise InputError(f"targets[{row}] is not finite. Leave the row out: it cannot vote.")
    if way := as_classes(answers, given, is_label):
        warn(
            "targets count as real values, though the predictions look like those of classes: wrong labels may go "
            f"unnoticed. If the targets are classes, give {way}; in scikit-learn, take a classifier."
        )
    width = np.array([width_of(output) for output in given.T])
    return answers / width, given / width


def as_classes(answers: Array, given: NDArray, is_label: bool) -> str:
    """How to give targets (N, q) that seem to be real values by mistake, beside what a classifier says; else empty.

    Binary cross-entropy takes classes as floats 0 and 1, other code numbers them -1 and 1, or has a column for each.
    """
    are_chances = answers.min() >= -SUM_TOLERANCE and answers.max() <= 1 + SUM_TOLERANCE
    if given.shape[1] == 1:
        values = np.unique(given)
        is_binary = np.array_equal(values, [0, 1])
        are_logits = is_binary and answers.min() < -1 and (np.abs(answers - 0.5) > 1.5).mean() >= LOGITS
        if len(values) != 2 or not (is_label or is_binary) or not (are_chances or are_logits):
            return ""
        way = f"targets == {values[1]:g}, or integers 0 and 1 (targets.astype(int), or targets.long() of a tensor)"
        return f"{way}, and predictions after sigmoid" if are_logits else way
    is_one_hot = ((given == 0) | (given == 1)).all() and (given.sum(1) == 1).all()
    add_up = (np.abs(answers.sum(2) - 1) <= SUM_TOLERANCE).all()
    return "targets.argmax(1)" if are_chances and is_one_hot and add_up else ""


def width_of(values: NDArray) -> float:
    """The interquartile range; if half of the values are the same, the others' median distance from it."""
    lower, middle, upper = np.quantile(values, (0.25, 0.5, 0.75))
    if upper > lower:
        return float(upper - lower)
    distance = np.abs(values - middle)
    return float(np.median(distance[distance > 0])) if distance.any() else 1.0


def to_numbers(values: Any, name: str) -> NDArray:
    """An array of numbers, from arrays, tensors (on any device, with or without a graph) or lists of them."""
    if isinstance(values, Mapping):
        raise InputError(
            f"{name} is a {type(values).__name__}, but must be an array. Give list({name}.values()), with "
            f"names=list({name})."
        )
    try:
        array = np.asarray(as_numpy(values))
    except ValueError:
        raise InputError(f"{name} are of unequal lengths, but must be of the same rows and as many outputs.") from None
    if array.dtype.kind == "O" and array.ndim:  # a frame's column of objects may hold numbers
        array = np.asarray(array.tolist())
    if array.dtype.kind not in "biuf":
        values = array.ravel().tolist()
        place = next((place for place, value in enumerate(values) if not isinstance(value, Real)), 0)
        where = f"[{place * len(array) // len(values)}]" if array.ndim else ""
        raise InputError(
            f"{name}{where} is {values[place]!r}, but {name} must be numbers, for classes 0 to C - 1 (numpy.unique "
            "with return_inverse=True gives them)."
        )
    return array


def as_numpy(values: Any) -> Any:
    """Tensors as numpy arrays, in lists as well."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # numpy has no bfloat16
    return [as_numpy(each) for each in values] if isinstance(values, list | tuple) else values


def check_probabilities(answers: Array, given: NDArray) -> None:
    """Refuse logits, and labels that are no class."""
    classes = answers.shape[2]
    wrong = np.flatnonzero((given < 0) | (given >= classes))
    if len(wrong):
        raise InputError(f"targets[{wrong[0]}] is {given[wrong[0]]}, but predictions have classes 0 to {classes - 1}.")
    off = np.argwhere((answers.min(2) < -SUM_TOLERANCE) | (np.abs(answers.sum(2) - 1) > SUM_TOLERANCE))
    if len(off):
        model, row = off[0]
        raise InputError(
            f"predictions[{model}, {row}] are no probabilities: they must be at least 0 and add up to 1. "
            "Apply softmax to logits first."
        )


def of_both_classes(chances: Array) -> Array:
    """(M, N, 2) probabilities of class 0 and class 1, from those of class 1."""
    off = np.argwhere((chances < -SUM_TOLERANCE) | (chances > 1 + SUM_TOLERANCE))
    if len(off):
        model, row = off[0]
        raise InputError(
            f"predictions[{model}, {row}] is {chances[model, row]:g}, but targets are integers 0 and 1, which are "
            "classes, and one column must be the probability of class 1. Apply sigmoid to logits first. Real-valued "
            "targets must be floats."
        )
    return np.stack([1 - chances, chances], axis=2)


def read_weights(weights: ArrayLike | None, rows: int) -> Array:
    """(N,) weights of the rows; all 1 if none are given."""
    if weights is None:
        return np.ones(rows)
    values = np.asarray(as_numpy(weights))
    if values.shape != (rows,) or values.dtype.kind not in "biuf":
        raise InputError(f"weights must be {rows} numbers, one for each row, but are {values.dtype} of {values.shape}.")
    is_bad = ~(np.isfinite(values) & (values >= 0))
    if is_bad.any() or not values.any():
        row = int(is_bad.argmax())
        raise InputError(f"weights[{row}] is {values[row]}, but weights must be 0 or more, and not all of them 0.")
    return values.astype(np.float64)


def class_numbers(labels: NDArray, classes: NDArray, way_out: str = "Leave such rows out.") -> NDArray[np.int64]:
    """The index of each label in an estimator's classes."""
    place, given = {name: number for number, name in enumerate(classes.tolist())}, labels.tolist()
    strange = next((row for row, label in enumerate(given) if label not in place), None)
    if strange is not None:
        raise InputError(f"y[{strange}] is {given[strange]!r}, which is no class of the estimator. {way_out}")
    return np.array([place[label] for label in given], dtype=np.int64)
