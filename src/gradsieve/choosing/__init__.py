"""Choosing by held-out rows with wrong targets: between models (``vote``, ``scorer``) and drop rates (``rates``)."""

from gradsieve.arguments import argument
from gradsieve.counts import check_rate
from gradsieve.errors import InputError

AUTO = "auto"
RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # tried by "auto"; defined here, so that a run is checked before torch is loaded


def largest_rate(drop_rate: float | str) -> float:
    """The given drop rate, checked; for "auto" the largest that it may choose."""
    if isinstance(drop_rate, str):
        if drop_rate != AUTO:
            raise InputError(
                f"{argument('drop_rate')} is {drop_rate!r}, but must be a number from 0 up to 1, or 'auto'; an "
                "estimator or audit also takes 'learn'."
            )
        return max(RATES)
    return check_rate(argument("drop_rate"), drop_rate)
