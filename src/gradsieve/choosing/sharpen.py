"""Probabilities of candidates made comparable: the mean probability of the given label favours whoever is surer.

A network that drops more rows learns from those it agrees with, and is surer than it should be. Squared probabilities
take most of that away. After the first vote, all candidates are made equally sure: what is left is how often they agree
with the rows, with less chance in it than a count of hits. Before wrong labels are learnt by heart, that is too alike.
"""

from __future__ import annotations

import numpy as np

from gradsieve.choosing.reading import Array

POWER = 2.0  # in the first vote
CONFIDENCE = 0.95  # the mean probability of the favourite, in those after it
HALVINGS = 20
LOG_POWERS = (-3.0, 4.0)  # between which the power is looked for


def raise_to(answers: Array, power: float) -> Array:
    """Probabilities (N, C) to a power, adding up to 1 again."""
    return normalise(power * relative_logs(answers))


def equally_sure(answers: Array, weights: Array, confidence: float = CONFIDENCE) -> Array:
    """Each of (M, N, C) to the power at which its favourites' mean probability is ``confidence``."""
    return np.stack([make_sure(each, weights, confidence) for each in answers])


def make_sure(answers: Array, weights: Array, confidence: float) -> Array:
    """Probabilities (N, C) to that power, by halving: the larger the power, the surer."""
    logs, (lower, upper) = relative_logs(answers), LOG_POWERS
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        sure = np.average(normalise(np.exp(middle) * logs).max(1), weights=weights)
        lower, upper = (middle, upper) if sure < confidence else (lower, middle)
    return normalise(np.exp((lower + upper) / 2) * logs)


def relative_logs(answers: Array) -> Array:
    """Logarithms, 0 for the favourite of each row, so that no power overflows."""
    logs = np.log(np.maximum(answers, 1e-12))
    return logs - logs.max(-1, keepdims=True)


def normalise(logs: Array) -> Array:
    chances = np.exp(logs)
    return chances / chances.sum(-1, keepdims=True)
