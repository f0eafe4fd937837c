"""The chosen drop rate, and how it was chosen: what the user sees and files keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradsieve.choosing.vote import Choice
from gradsieve.counts import check_rate

LEAST_ROWS = 200  # of fewer rows, the fifth that votes is too small


@dataclass(frozen=True, eq=False)
class RatePick:
    """A drop rate, how it was chosen, and how many targets seem wrong."""

    rate: float  # the drop rate to use: the winner of the race, or the estimate if that is larger and does no harm;
    # 0 if a fit at that rate contradicts the winner
    estimate: float  # the estimated share of wrong targets
    interval: tuple[float, float]  # holds 90 % of the estimates from resampled rows; excludes the method's own error
    warning: str = ""  # for the user, if the rows could not decide or contradict each other; otherwise empty
    winner: float = 0.0  # the drop rate that won the race
    rates: tuple[float, ...] = ()  # all that were tried
    margins: tuple[float, ...] = ()  # of each against the winner, in the last vote that both took part in
    errors: tuple[float, ...] = ()  # their standard errors
    trained: tuple[float, ...] = ()  # the share of the epochs after which that vote was held
    choice: Choice | None = None  # the last vote

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the last vote."""
        plain = {name: value for name, value in vars(self).items() if name != "choice"}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RatePick:
        """What `to_json` wrote."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        pick = cls(**fields)
        check_rate("rate", pick.rate)
        return pick


def no_pick(warning: str = "") -> RatePick:
    """The pick if there is nothing to choose, or there are too few rows to vote: nothing is dropped."""
    return RatePick(0.0, 0.0, (0.0, 0.0), warning)


def too_few(rows: int) -> RatePick:
    """The pick for a table too small for a vote."""
    return no_pick(
        f"{rows} rows are too few to choose a drop rate ({LEAST_ROWS} are needed), so nothing is dropped. "
        "Set the drop rate to the share of targets that you believe is wrong."
    )
