"""By what rows are ranked, and how many are flagged without anybody having said how many are wrong."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.audit.kinds import Explained
from gradsieve.audit.scatter import Array
from gradsieve.methods import METHODS
from gradsieve.methods.prl_l import PRLL

LARGEST_SCORE = math.sqrt(2)  # of the loss-layer gradient of cross-entropy: sure of one class where another is given
DOUBT = 0.01  # added to a chance: among rows that are surely right, those that lie farther off still come first


class Ranking(NamedTuple):
    """What rows are ranked by, how many of the first are flagged, and why so many, in words."""

    scores: Array  # (N,) large is suspect, NaN is unknown
    flagged: int
    source: str


def rank_classes(mean_score: Array, given: NDArray[Any], suggested: NDArray[Any], method: str) -> Ranking:
    """Classes: by the mean score, because a network that has learnt a wrong label by heart agrees with it in the end.

    Scores at the loss layer (PRL(L)) have a largest value, and a row beyond half of it was more against its label than
    for it. Other scores have no such mark: as many rows are flagged as the network, in the end, gives another class.
    """
    if method in METHODS and issubclass(METHODS[method], PRLL):
        against = int((mean_score > LARGEST_SCORE / 2).sum())
        return Ranking(mean_score, against, "rows that were more against their label than for it")
    return Ranking(mean_score, int((given != suggested).sum()), "as many as the network gives another class")


def rank_targets(mean_score: Array, explained: Explained) -> Ranking:
    """Amounts: by the mean score and the final distance together, their geometric mean, times the odds of being wrong.

    A network learns amounts slowly, so that early scores say little; it learns wrong ones by heart late, if at all.
    Flagged are as many rows as are more likely wrong than right.
    """
    chance = 1 / (1 + np.exp(-np.clip(explained.odds, -500, 500)))
    scores = np.sqrt(mean_score * explained.distance) * (chance + DOUBT)
    wrong = int((explained.odds > 0)[~np.isnan(mean_score)].sum())
    return Ranking(scores, wrong, "rows that a mistake explains better than the errors of the network")
