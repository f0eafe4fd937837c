"""Schedules of the drop rate: pure functions of the time T, counted from 1 in epochs or in steps.

Your own function ``f(T, drop_rate, ramp) -> rate`` works too: name it as ``"module:function"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from gradsieve.counts import check_rate
from gradsieve.errors import InputError
from gradsieve.registry import Registry

Schedule = Callable[[int, float, int], float]
Unit = Literal["epoch", "step"]


def check_unit(unit: str) -> Unit:
    """The unit that a schedule counts in: "epoch" or "step"."""
    if unit not in get_args(Unit):
        raise InputError(f"every is {unit!r}, but must be {' or '.join(map(repr, get_args(Unit)))}.")
    return unit  # pyright: ignore[reportReturnType]


SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    {
        "ramp": "gradsieve.schedule:ramp",
        "wait": "gradsieve.schedule:wait",
        "constant": "gradsieve.schedule:constant",
    },
)


def ramp(T: int, drop_rate: float, ramp: int) -> float:
    """Rise linearly to the drop rate over the first ``ramp`` units, then stay there (Algorithm 3)."""
    return min(T / ramp, 1.0) * drop_rate if ramp > 0 else drop_rate


def wait(T: int, drop_rate: float, ramp: int) -> float:
    """Drop nothing for the first ``ramp`` units, then use the full drop rate."""
    return 0.0 if ramp >= T else drop_rate


def constant(T: int, drop_rate: float, ramp: int) -> float:
    """Use the full drop rate from the start."""
    return drop_rate


def linear_decay(T: int, length: int, rate: float) -> float:
    """The learning rate at epoch T: constant, then falling linearly to 0 over the last 60 % of ``length`` epochs."""
    return rate * min(1.0, (length - T + 1) / length / 0.6)


def find_schedule(name: str) -> Schedule:
    """The schedule of that name, or the user's own function at ``"module:function"``."""
    function = SCHEDULES[name]
    if not callable(function):
        raise InputError(f"schedule {name!r} is {function!r}, but must be a function of (T, drop_rate, ramp).")
    return function


def plan(schedule: str, drop_rate: float, ramp: int, length: int) -> list[float]:
    """The rate at each T = 1 .. length. All are checked before the first is used."""
    function = find_schedule(schedule)
    rates = []
    for T in range(1, length + 1):
        try:
            rates.append(check_rate("rate", function(T, drop_rate, ramp)))
        except Exception as error:  # whatever a user's function raises
            raise InputError(f"schedule {schedule!r} at T={T}: {error}") from error
    return rates
