"""Models' probabilities made comparable: the mean probability of the given label favours those that are surer.

A decision tree is surer than nearest neighbours, a network that has memorized its rows surer than it was ten epochs
before, and one that drops more rows learns from those it agrees with. So models are made equally sure before they are
compared: what is left is how often they agree with the rows, less noisy than a count of hits.

In the first vote of a race that hardly differs between candidates, because none has memorized wrong labels yet.
Squaring their probabilities takes most of the difference in sureness away, and keeps what else they tell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradsieve.choosing.reading import Array

POWER = 2.0  # of the probabilities in the first vote
CONFIDENCE = 0.95  # the mean probability of each row's most likely class, if models are equally sure
HALVINGS = 20  # bisections of the interval below
LOG_POWERS = (-3.0, 4.0)  # the natural logarithms between which the power is searched


def comparable(answers: Array, given: NDArray, weights: Array) -> Array:
    """What a vote compares of (M, N, k) answers: outputs as they are, probabilities of classes equally sure."""
    return equally_sure(answers, weights) if given.ndim == 1 else answers


def raise_to(answers: Array, power: float) -> Array:
    """Probabilities (N, C) to a power, adding up to 1 again."""
    return normalise(power * relative_logs(answers))


def equally_sure(answers: Array, weights: Array, confidence: float = CONFIDENCE) -> Array:
    """Each model of (M, N, C) raised to the power at which its most likely classes' mean is ``confidence``."""
    return np.stack([make_sure(each, weights, confidence) for each in answers])


def make_sure(answers: Array, weights: Array, confidence: float) -> Array:
    """Probabilities (N, C) raised to that power, found by bisection: the larger the power, the surer."""
    logs, (lower, upper) = relative_logs(answers), LOG_POWERS
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        largest = 1 / np.exp(np.exp(middle) * logs).sum(1)  # the logarithm of the most likely class is 0
        sure = np.average(largest, weights=weights)
        lower, upper = (middle, upper) if sure < confidence else (lower, middle)
    return normalise(np.exp((lower + upper) / 2) * logs)


def relative_logs(answers: Array) -> Array:
    """Logarithms, 0 for the most likely class of each row, so that no power overflows."""
    logs = np.log(np.maximum(answers, 1e-12))
    return logs - logs.max(-1, keepdims=True)


def normalise(logs: Array) -> Array:
    chances = np.exp(logs)
    return chances / chances.sum(-1, keepdims=True)
