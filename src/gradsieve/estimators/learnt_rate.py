"""``drop_rate="learn"``: one fit that drops as many rows as seem wrong to the network on its way."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from gradsieve.data import Task
from gradsieve.mistakes.share import wrong_share

LEARN = "learn"
LEARN_AT = (0.2, 0.3, 0.4)  # shares of the epochs: later, a network begins to learn wrong targets by heart
# Classes are not judged before these epochs, as far as twice the shares allow: to a network that has seen its rows
# only a few times, many a right one seems wrong, and what it then drops for good it never learns.
READY_AT = (10, 15, 20)
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
    """
    share = wrong_share(task, given, outputs)
    return min(MOST_WRONG, share if task == "classification" else max(share, first_rate))
