"""``drop_rate="learn"``: one fit that drops as many rows as seem wrong to the network during training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.data import Task
from gradsieve.mistakes.scatter import residual_scale, spread
from gradsieve.mistakes.share import wrong_share

LEARN = "learn"
LEARN_AT = (0.2, 0.3, 0.4)  # shares of the epochs after which the rate is estimated: later, wrong targets are memorized
# For classes it is estimated after these epochs if they are later, but after at most twice the shares above: to a
# network that has seen its rows a few times only, many right ones seem wrong, and rows that are dropped stay so.
READY_AT = (10, 15, 20)
SMALL_RESIDUAL = 0.1  # of the targets' spread: with a smaller typical residual, a network has learned most targets
MOST_WRONG = 0.5  # the largest rate: beyond, wrong targets are the majority and nothing can be learned


def learning_epochs(task: Task, epochs: int) -> set[int]:
    """The epochs after which the drop rate is estimated anew."""
    times = [share * epochs for share in LEARN_AT]
    if task == "classification":
        times = [max(time, min(2 * time, ready)) for time, ready in zip(times, READY_AT, strict=True)]
    return {max(1, round(time)) for time in times}


def learnt_rate(task: Task, given: NDArray[Any], outputs: NDArray[Any], first_rate: float) -> float:
    """The share of rows that seem wrong to a network, by its probabilities (N, K) or predictions (N, q).

    For real-valued targets it is at least the rate that the fit began with, because few targets seem wrong to a network
    that learns wrong ones; unless most residuals are small, which they are not if a network learns both.
    """
    share = wrong_share(task, given, outputs)
    if task == "regression" and not is_close(given.astype(np.float64), outputs):
        share = max(share, first_rate)
    return min(MOST_WRONG, share)


def is_close(given: NDArray[np.float64], expected: NDArray[Any]) -> bool:
    """Whether the typical residual of every output is small; ``given`` and ``expected``: targets (N, q)."""
    scale = residual_scale(given, expected, np.ones(len(given), dtype=bool))
    return bool((scale < SMALL_RESIDUAL * spread(given)).all())
