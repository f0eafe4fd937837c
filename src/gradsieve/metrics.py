"""How good a network is.

Every function returns a tensor on the device of its arguments: who reads the figure later does not wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gradsieve.data.dataset import Task
from gradsieve.errors import InputError


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of the rows of ``outputs`` (N, C) that are largest at the class ``targets`` (N,)."""
    return (outputs.argmax(1) == targets).double().mean()


def r2(predictions: Tensor, targets: Tensor) -> Tensor:
    """R squared of (N, q) predictions, averaged over the q outputs; ``sklearn.metrics.r2_score``.

    Its conventions too: an output whose target is constant counts 1 if it is met exactly and 0 otherwise,
    and a single row has none (nan).
    """
    if predictions.shape != targets.shape:  # broadcasting (N,) against (N, 1) would compare all with all
        shapes = f"{tuple(predictions.shape)} and {tuple(targets.shape)}"
        raise InputError(f"Predictions and targets have shapes {shapes}, but they must be the same.")
    predictions, targets = predictions.double(), targets.double()
    residual = (targets - predictions).square().sum(0)  # (q,)
    total = (targets - targets.mean(0)).square().sum(0)
    constant = (targets == targets[:1]).all(0)  # total may be a rounding error instead of 0
    scores = torch.where(constant, (residual == 0).double(), 1 - residual / total)
    return scores.mean() if len(targets) > 1 else scores.new_tensor(torch.nan)


class Metric(NamedTuple):
    """What a task is judged by: larger is better."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> ()


METRICS: Mapping[Task, Metric] = {
    "classification": Metric("accuracy", accuracy),
    "regression": Metric("r2", r2),
}
