"""``drop_rate="learn"``: one fit that drops as many rows as seem wrong to the network on its way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.data import Task
from gradsieve.mistakes.scatter import residual_scale, spread
from gradsieve.mistakes.share import wrong_share

LEARN = "learn"
LEARN_AT = (0.2, 0.3, 0.4)  # shares of the epochs: later, a network begins to learn wrong targets by heart
# Classes are not judged before these epochs, as far as twice the shares allow: to a network that has seen its rows
# only a few times, many a right one seems wrong, and what it then drops for good it never learns.
READY_AT = (10, 15, 20)
CLOSE = 0.1  # of the spread of the amounts: how far they typically lie from what a network expects that knows them
MOST_WRONG = 0.5  # beyond, wrong targets are the rule and nothing can be learnt


def learning_epochs(task: Task, epochs: int) -> set[int]:
    """The epochs after which the drop rate is estimated anew."""
    times = [share * epochs for share in LEARN_AT]
    if task == "classification":
        times = [max(time, min(2 * time, ready)) for time, ready in zip(times, READY_AT, strict=True)]
    return {max(1, round(time)) for time in times}


def learnt_rate(task: Task, given: NDArray[Any], outputs: NDArray[Any], first_rate: float) -> float:
    """The share of rows that seem wrong to a network, by its probabilities (N, K) or predictions (N, q).

    Of amounts, no less than the rate that the fit began with: to a network that learns wrong ones, few seem wrong.
    Unless most amounts are met closely, which no network does that learns two things at once.
    """
    share = wrong_share(task, given, outputs)
    if task == "regression" and not is_close(given.astype(np.float64), outputs):
        share = max(share, first_rate)
    return min(MOST_WRONG, share)


def is_close(given: NDArray[np.float64], expected: NDArray[Any]) -> bool:
    """Whether more than half of the amounts (N, q) of every output are where a network expects them."""
    missed = residual_scale(given, expected, np.ones(len(given), dtype=bool))
    return bool((missed < CLOSE * spread(given)).all())
