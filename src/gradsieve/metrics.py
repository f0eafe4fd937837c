"""Metrics of a network on test rows.

Every function returns a tensor on the device of its arguments, so that you wait for the device only when you read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gradsieve.data.dataset import Task
from gradsieve.errors import InputError


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of the rows of ``outputs`` (N, C) whose largest value is at the class in ``targets`` (N,)."""
    return (outputs.argmax(1) == targets).double().mean()


def r2(predictions: Tensor, targets: Tensor) -> Tensor:
    """R squared of (N, q) predictions, averaged over the q outputs, as ``sklearn.metrics.r2_score`` computes it.

    Its conventions hold too: an output whose target is constant scores 1 if it is predicted exactly and 0
    otherwise, and the score of a single row is nan.
    """
    if predictions.shape != targets.shape:  # broadcasting (N,) against (N, 1) would compare all with all
        shapes = f"{tuple(predictions.shape)} and {tuple(targets.shape)}"
        raise InputError(f"Predictions and targets have shapes {shapes}, but they must be the same.")
    predictions, targets = predictions.double(), targets.double()
    residual = (targets - predictions).square().sum(0)  # (q,)
    total = (targets - targets.mean(0)).square().sum(0)
    constant = (targets == targets[:1]).all(0)  # for these, total may be a rounding error instead of 0
    scores = torch.where(constant, (residual == 0).double(), 1 - residual / total)
    return scores.mean() if len(targets) > 1 else scores.new_tensor(torch.nan)


class Metric(NamedTuple):
    """The metric of a task: larger is better."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> ()


METRICS: Mapping[Task, Metric] = {
    "classification": Metric("accuracy", accuracy),
    "regression": Metric("r2", r2),
}
