"""By what rows are ranked, and how many are flagged without anybody having said how many are wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.methods import METHODS
from gradsieve.methods.prl_l import PRLL
from gradsieve.mistakes.kinds import Explained
from gradsieve.mistakes.share import LARGEST_SCORE
from gradsieve.mistakes.widths import Gaps

Array = NDArray[np.floating[Any]]

AGAINST = LARGEST_SCORE / 2  # beyond it, a row was more against its label than for it
HARDLY = 0.75  # of the rows that one guess for all would miss: who misses more knows hardly more than that guess
UNSETTLED = 0.2  # the median score of rows that are not flagged, after few epochs; after 50 it lay below 0.17
DOUBT = 0.2  # added to a chance: among rows that are surely right, those that lie farther off still come first


class Flagging(NamedTuple):
    """What rows are ranked by, how many of the first are flagged, and why so many, in words."""

    scores: Array  # (N,) large is suspect, NaN is unknown
    flagged: int
    source: str
    caution: str = ""  # where it says little


def rank_classes(
    mean_score: Array, given: NDArray[Any], suggested: NDArray[Any], method: str, gaps: Gaps, most: float = 1.0
) -> Flagging:
    """Classes: by the mean score, because a network that has learnt a wrong label by heart agrees with it in the end.

    Scores at the loss layer (PRL(L)) have a largest value, and a row beyond half of it was more against its label than
    for it. Other scores have no such mark: as many rows are flagged as the network, in the end, gives another class.
    A mean over few epochs has much in it from before the network knew anything: no more than the share ``most`` is
    flagged, and the words say so where that is less, or where even rows that are not flagged were long in doubt.
    """
    if method not in METHODS or not issubclass(METHODS[method], PRLL):
        others = int((given != suggested).sum())
        return Flagging(mean_score, others, "as many as the network gives another class", hardly_told(given, others))
    mean_score = doubted(mean_score, given, gaps)
    known = mean_score[~np.isnan(mean_score)]
    against, allowed = int((known > AGAINST).sum()), round(most * len(known))
    flagged, source = against, "rows that were more against their label than for it"
    if against > allowed:
        flagged, source = allowed, "as many as seemed wrong to the network on its way"
    trusted = len(known) - flagged
    is_unsettled = trusted > 0 and np.partition(known, trusted // 2)[trusted // 2] > UNSETTLED
    caution = hardly_told(given, against)
    if not caution and (against > allowed or is_unsettled):
        caution = "The training was too short to tell how many rows are wrong, so give it more epochs."
    return Flagging(mean_score, flagged, source, caution)


def doubted(mean_score: Array, given: NDArray[Any], gaps: Gaps) -> Array:
    """The scores, of rows without an input that labels are hardly told without no larger than flags begin."""
    found = mean_score.copy()
    for gap in gaps.T:
        if hardly_told(given[gap], int((mean_score[gap] > AGAINST).sum())):
            found[gap] = np.minimum(found[gap], AGAINST)
    return found


def hardly_told(given: NDArray[Any], against: int) -> str:
    """A sentence where a network that is against so many labels knows hardly more than which is the most frequent."""
    missed = len(given) - int(np.bincount(given).max())
    if against <= min(HARDLY * missed, len(given) / 2):
        return ""
    return (
        f"The inputs hardly tell these labels, or the training was too short: the network was against {against} of "
        f"{len(given)} labels, and one label for all rows would miss {missed}. The flags say little."
    )


def rank_targets(mean_score: Array, explained: Explained) -> Flagging:
    """Amounts: by the larger of the mean score and the final distance, each in its medians, times the chance of being
    wrong.

    A network that learns amounts slowly says little early, and one that learns wrong ones by heart says little late:
    a row is suspect that was far off in one of both. Flagged are as many rows as are likelier wrong than right.
    """
    scores = in_medians(mean_score)
    np.maximum(scores, in_medians(explained.distance), out=scores)  # in place: there may be many rows
    scores *= chance_of(explained.odds) + DOUBT
    wrong = int(((explained.odds > 0) & ~np.isnan(mean_score)).sum())
    return Flagging(scores, wrong, "rows that a mistake explains better than the errors of the network")


def in_medians(values: Array) -> Array:
    """Values (N,), not negative, as multiples of the median of those that are known."""
    median = np.median(values[np.isfinite(values)]) if np.isfinite(values).any() else 0.0
    return values / (median if median > 0 else 1)


def chance_of(odds: Array) -> Array:
    """Chances (N,) from 0 to 1 of logarithms of odds."""
    found = np.clip(-odds, -50, 50)
    np.exp(found, out=found)
    found += 1
    return np.reciprocal(found, out=found)
