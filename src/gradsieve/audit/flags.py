"""By what rows are ranked, and how many are flagged without anybody having said how many are wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.methods import METHODS
from gradsieve.methods.prl_l import PRLL
from gradsieve.mistakes.kinds import Explained
from gradsieve.mistakes.scatter import Array
from gradsieve.mistakes.share import LARGEST_SCORE

DOUBT = 0.2  # added to a chance: among rows that are surely right, those that lie farther off still come first


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
    """Amounts: by the geometric mean of the mean score and the final distance, times the chance of being wrong.

    A network learns amounts slowly, so that early scores say little; it learns wrong ones by heart late, if at all.
    Flagged are as many rows as are likelier wrong than right.
    """
    chance = 1 / (1 + np.exp(-np.clip(explained.odds, -50, 50)))
    scores = np.sqrt(mean_score * explained.distance)
    scores *= chance + DOUBT
    wrong = int(((explained.odds > 0) & ~np.isnan(mean_score)).sum())
    return Ranking(scores, wrong, "rows that a mistake explains better than the errors of the network")
