"""Choosing on rows that cannot be trusted: between models (``vote``, ``scorer``) and between drop rates (``rates``)."""

from gradsieve.arguments import argument
from gradsieve.counts import check_rate
from gradsieve.errors import InputError

AUTO = "auto"
RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)  # that "auto" tries; here, so that a run can be checked before torch is loaded


def largest_rate(drop_rate: float | str) -> float:
    """A drop rate as given, checked; for "auto" the largest that it may choose."""
    if isinstance(drop_rate, str):
        if drop_rate != AUTO:
            raise InputError(
                f"{argument('drop_rate')} is {drop_rate!r}, but must be a number from 0 up to 1, or 'auto'; of an "
                "estimator or audit also 'learn'."
            )
        return max(RATES)
    return check_rate(argument("drop_rate"), drop_rate)
