"""Candidates' probabilities made comparable: the mean probability of the given label favours networks that are surer.

A network that drops more rows learns from those it agrees with, and is surer than it should be. Squaring probabilities
takes most of that away. After the first vote, all candidates are made equally sure instead: what is left is how often
they agree with the rows, less noisy than a count of hits. In the first vote that hardly differs between candidates,
because none has memorized wrong labels yet.
"""

from __future__ import annotations

import numpy as np

from gradsieve.choosing.reading import Array

POWER = 2.0  # of the probabilities in the first vote
CONFIDENCE = 0.95  # the mean probability of each row's most likely class, in later votes
HALVINGS = 20  # bisections of the interval below
LOG_POWERS = (-3.0, 4.0)  # the natural logarithms between which the power is searched


def raise_to(answers: Array, power: float) -> Array:
    """Probabilities (N, C) to a power, adding up to 1 again."""
    return normalise(power * relative_logs(answers))


def equally_sure(answers: Array, weights: Array, confidence: float = CONFIDENCE) -> Array:
    """Each candidate of (M, N, C) raised to the power at which its most likely classes' mean is ``confidence``."""
    return np.stack([make_sure(each, weights, confidence) for each in answers])


def make_sure(answers: Array, weights: Array, confidence: float) -> Array:
    """Probabilities (N, C) raised to that power, found by bisection: the larger the power, the surer."""
    logs, (lower, upper) = relative_logs(answers), LOG_POWERS
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        sure = np.average(normalise(np.exp(middle) * logs).max(1), weights=weights)
        lower, upper = (middle, upper) if sure < confidence else (lower, middle)
    return normalise(np.exp((lower + upper) / 2) * logs)


def relative_logs(answers: Array) -> Array:
    """Logarithms, 0 for the most likely class of each row, so that no power overflows."""
    logs = np.log(np.maximum(answers, 1e-12))
    return logs - logs.max(-1, keepdims=True)


def normalise(logs: Array) -> Array:
    chances = np.exp(logs)
    return chances / chances.sum(-1, keepdims=True)
