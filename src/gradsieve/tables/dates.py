"""Dates and times as days: an instant is the same number whatever its unit, time zone or file format."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
ISO = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)


def days(units: NDArray[np.int64], per_day: int) -> NDArray[np.float64]:
    """Units since 1970, or of a duration, as days. Divided as integers, since a float64 cannot hold all nanoseconds."""
    return units // per_day + units % per_day / per_day


@lru_cache(2**16)  # dates repeat in many rows, and columns are read more than once
def iso_days(cell: str) -> float | None:
    """Days since 1970 of a cell such as 2024-02-29 or 2024-02-29T12:30:00Z; without a zone it is UTC."""
    found = ISO.fullmatch(cell.strip())
    if found is None:
        return None
    day, clock, fraction, zone = found.groups(default="")
    offset = "+00:00" if zone in ("", "Z") else f"{zone[:3]}:{zone[-2:]}"
    try:
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}{offset}")
    except ValueError:
        return None
    nanoseconds = (moment - EPOCH) // timedelta(seconds=1) * 10**9 + int(fraction.ljust(9, "0"))
    whole, rest = divmod(nanoseconds, PER_DAY["ns"])
    return whole + rest / PER_DAY["ns"]
