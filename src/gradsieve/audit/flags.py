"""How rows are ranked, and how many are flagged, though nobody knows how many are wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve.methods import METHODS
from gradsieve.methods.prl_l import PRLL
from gradsieve.mistakes.kinds import Diagnosis
from gradsieve.mistakes.share import LARGEST_SCORE
from gradsieve.mistakes.widths import Gaps

Array = NDArray[np.floating[Any]]

AGAINST = LARGEST_SCORE / 2  # with a larger mean score, the network was more against the row's label than for it
HARDLY = 0.75  # of the rows that the most frequent label misses: a network against more labels has learned too little
UNSETTLED = 0.2  # a larger median score of rows not flagged means too few epochs: after 50 it was below 0.17
DOUBT = 0.2  # added to the probability of being wrong, so that surely right rows are still ranked by distance


class Flagging(NamedTuple):
    """The scores that rank the rows, how many of the first are flagged, and why that many."""

    scores: Array  # (N,) larger is more suspicious, NaN is unknown
    flagged: int
    source: str  # why that many, in words
    caution: str = ""  # why the flags may be unreliable, if so


def rank_classes(
    mean_score: Array, given: NDArray[Any], suggested: NDArray[Any], method: str, gaps: Gaps, most: float = 1.0
) -> Flagging:
    """Classes: by the mean score, because a network that has memorized a wrong label agrees with it in the end.

    Loss-layer scores (PRL(L)) have a largest value; above half of it, the network was more against the label than for
    it. Other scores have no such threshold: as many rows are flagged as the network, in the end, assigns to another
    class. Over few epochs, much of the mean is from before the network had learned anything. So no more than the share
    ``most`` is flagged; a caution says so if that is fewer rows, or if rows that are not flagged have high scores, too.
    """
    if method not in METHODS or not issubclass(METHODS[method], PRLL):
        others = int((given != suggested).sum())
        source = "as many as the network assigns to another class"
        return Flagging(mean_score, others, source, caution_if_unpredictable(given, others))
    mean_score = capped_without_inputs(mean_score, given, gaps)
    known = mean_score[~np.isnan(mean_score)]
    against, allowed = int((known > AGAINST).sum()), round(most * len(known))
    flagged, source = against, "rows for which the network was more against the label than for it"
    if against > allowed:
        flagged, source = allowed, "as many as seemed wrong to the network during training"
    trusted = len(known) - flagged
    is_unsettled = trusted > 0 and np.partition(known, trusted // 2)[trusted // 2] > UNSETTLED
    caution = caution_if_unpredictable(given, against)
    if not caution and (against > allowed or is_unsettled):
        caution = "The training was too short to tell how many rows are wrong: give it more epochs."
    return Flagging(mean_score, flagged, source, caution)


def capped_without_inputs(mean_score: Array, given: NDArray[Any], gaps: Gaps) -> Array:
    """The scores, capped at ``AGAINST`` for rows that lack an input without which labels are hardly predicted."""
    found = mean_score.copy()
    for gap in gaps.T:
        if caution_if_unpredictable(given[gap], int((mean_score[gap] > AGAINST).sum())):
            found[gap] = np.minimum(found[gap], AGAINST)
    return found


def caution_if_unpredictable(given: NDArray[Any], against: int) -> str:
    """A caution if a network ``against`` so many labels has learned hardly more than which one is most frequent."""
    missed = len(given) - int(np.bincount(given).max())
    if against <= min(HARDLY * missed, len(given) / 2):
        return ""
    return (
        f"The inputs hardly predict these labels, or the training was too short: the network was against {against} of "
        f"{len(given)} labels, and one label for all rows would miss {missed}. The flags say little."
    )


def rank_targets(mean_score: Array, diagnosis: Diagnosis) -> Flagging:
    """Real-valued targets: by the larger of the mean score and the final distance, each as a multiple of its median,
    times the probability of being wrong.

    The mean says little about networks that learn slowly, the final distance about those that memorize wrong targets.
    So a row that is far off by either is suspect. As many rows are flagged as are more likely wrong than right.
    """
    scores = in_medians(mean_score)
    np.maximum(scores, in_medians(diagnosis.distance), out=scores)  # in place, to save memory
    scores *= chance_of(diagnosis.odds) + DOUBT
    wrong = int(((diagnosis.odds > 0) & ~np.isnan(mean_score)).sum())
    return Flagging(scores, wrong, "rows that a mistake explains better than the errors of the network")


def in_medians(values: Array) -> Array:
    """Values (N,), not negative, as multiples of their median; NaN stays."""
    median = np.median(values[np.isfinite(values)]) if np.isfinite(values).any() else 0.0
    return values / (median if median > 0 else 1)


def chance_of(odds: Array) -> Array:
    """Probabilities (N,) from logarithms of odds."""
    found = np.clip(-odds, -50, 50)
    np.exp(found, out=found)
    found += 1
    return np.reciprocal(found, out=found)
