"""A drop rate that was chosen, and how: what people see and files keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradsieve.choosing.vote import Choice
from gradsieve.counts import check_rate

LEAST_ROWS = 200  # a fifth of fewer is no electorate


@dataclass(frozen=True, eq=False)
class RatePick:
    """A drop rate, and how it was chosen."""

    rate: float  # to drop: the one that won the race, or the estimate where that is larger and does no harm; 0 if a fit
    # at that rate turns out another way than what won
    estimate: float  # of the share of wrong targets
    interval: tuple[float, float]  # 90 % of the estimates from resampled rows; what the method gets wrong is not in it
    warning: str = ""  # one sentence where the rows could not decide, or what they say does not fit together
    winner: float = 0.0  # of the race
    rates: tuple[float, ...] = ()  # all that were tried
    margins: tuple[float, ...] = ()  # of each against the winner, at the last vote that both took part in
    errors: tuple[float, ...] = ()  # their standard errors
    trained: tuple[float, ...] = ()  # the share of the epochs after which that vote was
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
    """Where there is nothing to choose, or nobody to choose: no row is dropped."""
    return RatePick(0.0, 0.0, (0.0, 0.0), warning)


def too_few(rows: int) -> RatePick:
    """A table so small that its vote would be a lottery."""
    return no_pick(
        f"{rows} rows are too few to choose a drop rate by ({LEAST_ROWS} are needed), so none is dropped. "
        "Give the share of targets that you believe is wrong as the drop rate."
    )
