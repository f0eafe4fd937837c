"""The share of targets that a network finds wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.data import Task
from gradsieve.mistakes.kinds import diagnose

LARGEST_SCORE = math.sqrt(2)  # the largest loss-layer gradient of cross-entropy: sure of a class that is not given


def score(task: Task, given: NDArray[Any], outputs: NDArray[Any]) -> NDArray[np.float64]:
    """(N,) the loss-layer gradient of ``given`` classes or targets, for (N, K) probabilities or (N, q) predictions."""
    wanted = given[:, None] == np.arange(outputs.shape[1]) if task == "classification" else given
    return np.linalg.norm(outputs - wanted, axis=1)


def wrong_share(task: Task, given: NDArray[Any], outputs: NDArray[Any]) -> float:
    """The share of rows whose class the network is more against than for, or whose targets are likelier wrong."""
    if task == "classification":
        return float((score(task, given, outputs) > LARGEST_SCORE / 2).mean())
    return float((diagnose(given.astype(np.float64), outputs).odds > 0).mean())
