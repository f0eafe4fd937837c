"""Shares to counts, exactly. This is the one place that does the arithmetic.

In floats ``int((1 - 0.9) * 10)`` is 0, though a tenth of ten rows is one row. A rate that a person wrote, or that a
ramp computed from one, is a fraction with a small denominator, so the float is first turned back into it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple

from gradsieve.errors import InputError


def exact(share: float) -> Fraction:
    """The fraction with a small denominator that ``share`` stands for: 0.1 is 1/10, 3 / 10 * 0.45 is 27/200.

    Less than half a millionth becomes 0, so that an estimated rate of almost 0 does not drop a row of every batch.
    """
    return Fraction(share).limit_denominator(1_000_000)


def check_rate(name: str, rate: float) -> float:
    """``rate`` as a float in [0, 1), or an error that names the argument."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= rate < 1:
        raise InputError(f"{name} is {rate!r}, but a rate is a number from 0 up to, but not including, 1.")
    return float(rate)


def part(rate: float, rows: int) -> int:
    """The largest number of rows that is at most the share ``rate`` of all ``rows``: floor(rate * rows)."""
    return int(exact(rate) * rows)


class KeptShare(NamedTuple):
    """The kept share of a batch as a fraction, for row counts that are tensors or symbols of a compiler."""

    numerator: int
    denominator: int

    @classmethod
    def beside(cls, drop_rate: float) -> KeptShare:
        """The share that is kept at this drop rate."""
        return cls(*(1 - exact(drop_rate)).as_integer_ratio())

    def of(self, rows: Any) -> Any:
        """How many of ``rows`` stay, as `keep_count` computes it."""
        count = self.numerator * rows // self.denominator
        return max(1, count) if isinstance(rows, int) else count.clamp(min=1)


@lru_cache(maxsize=1024)  # fractions are slow, and a run asks for the same few counts in every step
def keep_count(drop_rate: float, rows: int) -> int:
    """How many of ``rows`` stay when ``drop_rate`` of them go: floor((1 - rate) * rows), never 0."""
    return max(1, int((1 - exact(drop_rate)) * rows))
