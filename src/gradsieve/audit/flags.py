"""How rows are ranked, and how many are flagged if nobody knows how many are wrong."""

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

AGAINST = LARGEST_SCORE / 2  # beyond it, the network was more against the row's label than for it
HARDLY = 0.75  # of the rows that one label for all would miss: a network against more knows hardly more than that
UNSETTLED = 0.2  # the median score of rows that are not flagged, after few epochs; after 50 it was below 0.17
DOUBT = 0.2  # added to the probability: among rows that are surely right, those that lie farther off still come first


class Flagging(NamedTuple):
    """The scores that rank the rows, how many of the first are flagged, and why that many, in words."""

    scores: Array  # (N,) large is suspicious, NaN is unknown
    flagged: int
    source: str
    caution: str = ""  # if the audit says little


def rank_classes(
    mean_score: Array, given: NDArray[Any], suggested: NDArray[Any], method: str, gaps: Gaps, most: float = 1.0
) -> Flagging:
    """Classes: by the mean score, because a network that has memorized a wrong label agrees with it in the end.

    Scores at the loss layer (PRL(L)) have a largest value, and beyond half of it the network was more against the label
    than for it. Other scores have no such threshold: as many rows are flagged as the network, in the end, assigns to
    another class. A mean over few epochs has much in it from before the network knew anything: no more than the share
    ``most`` is flagged, and a caution says so if that is less, or if even rows that are not flagged were long in doubt.
    """
    if method not in METHODS or not issubclass(METHODS[method], PRLL):
        others = int((given != suggested).sum())
        source = "as many as the network assigns to another class"
        return Flagging(mean_score, others, source, hardly_told(given, others))
    mean_score = doubted(mean_score, given, gaps)
    known = mean_score[~np.isnan(mean_score)]
    against, allowed = int((known > AGAINST).sum()), round(most * len(known))
    flagged, source = against, "rows for which the network was more against the label than for it"
    if against > allowed:
        flagged, source = allowed, "as many as seemed wrong to the network during training"
    trusted = len(known) - flagged
    is_unsettled = trusted > 0 and np.partition(known, trusted // 2)[trusted // 2] > UNSETTLED
    caution = hardly_told(given, against)
    if not caution and (against > allowed or is_unsettled):
        caution = "The training was too short to tell how many rows are wrong: give it more epochs."
    return Flagging(mean_score, flagged, source, caution)


def doubted(mean_score: Array, given: NDArray[Any], gaps: Gaps) -> Array:
    """The scores, but no larger than ``AGAINST`` for rows that lack an input, if their labels are hardly predicted."""
    found = mean_score.copy()
    for gap in gaps.T:
        if hardly_told(given[gap], int((mean_score[gap] > AGAINST).sum())):
            found[gap] = np.minimum(found[gap], AGAINST)
    return found


def hardly_told(given: NDArray[Any], against: int) -> str:
    """A caution if a network against so many labels knows hardly more than which label is the most frequent."""
    missed = len(given) - int(np.bincount(given).max())
    if against <= min(HARDLY * missed, len(given) / 2):
        return ""
    return (
        f"The inputs hardly predict these labels, or the training was too short: the network was against {against} of "
        f"{len(given)} labels, and one label for all rows would miss {missed}. The flags say little."
    )


def rank_targets(mean_score: Array, explained: Explained) -> Flagging:
    """Real-valued targets: by the larger of the mean score and the final distance, each as a multiple of its median,
    times the probability of being wrong.

    A network that learns slowly says little early, and one that memorizes wrong targets says little late: a row that is
    far off in either is suspect. As many rows are flagged as are more likely wrong than right.
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
    """Probabilities (N,) from logarithms of odds."""
    found = np.clip(-odds, -50, 50)
    np.exp(found, out=found)
    found += 1
    return np.reciprocal(found, out=found)
