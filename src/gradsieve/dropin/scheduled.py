"""A drop rate that changes over time. A loss does not see epochs, so its owner must call ``step`` or ``at``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from gradsieve.counts import KeptShare, check_rate
from gradsieve.data.validate import check_count
from gradsieve.errors import InputError
from gradsieve.ranks import world_size
from gradsieve.schedule import ramp as rising

LONG_WAIT = 10_000  # batches without a call of ``step`` until we warn: few epochs are that long
RateAt = Callable[[int], float]  # the drop rate at time T = 1, 2, ...


class Scheduled(nn.Module):
    """A module whose drop rate is a number, a number reached over a ``ramp``, or a function of the time T."""

    def __init__(self, drop_rate: float | RateAt, ramp: int) -> None:
        super().__init__()
        self.T, self._ramp, self.is_told = 1, ramp, False
        self.drop_rate = drop_rate
        self.batches_waited = self.rows_waited = 0

    @property
    def drop_rate(self) -> float | RateAt:
        """The final rate, or the function of the time, as given. A new value takes effect at once."""
        return self._drop_rate

    @drop_rate.setter
    def drop_rate(self, value: float | RateAt) -> None:
        self.rate_at = rate_function(value, self.ramp)
        self._drop_rate = value
        self.take_rate(self.T)

    @property
    def ramp(self) -> int:
        """The number of T over which the rate rises. A new value takes effect at once."""
        return self._ramp

    @ramp.setter
    def ramp(self, value: int) -> None:
        self.rate_at = rate_function(self._drop_rate, value)
        self._ramp = value
        self.take_rate(self.T)

    @property
    def rate(self) -> float:
        """The drop rate now. It follows from the schedule: ``at`` and ``step`` change it."""
        return self._rate

    def at(self, T: int) -> None:
        """Take the drop rate of time ``T``, counted from 1."""
        check_count("T", T, 1)
        self.take_rate(T)
        self.is_told = True

    def step(self) -> None:
        """Move the schedule on by one: once an epoch or once an update, as it counts."""
        self.at(self.T + 1)

    def take_rate(self, T: int) -> None:
        rate = check_rate("drop_rate", self.rate_at(T))
        self.T, self._rate, self.share = T, rate, KeptShare.beside(rate)

    @property
    def awaits_time(self) -> bool:
        """Whether the rate changes with the time, and nobody has told the time yet."""
        return not self.is_told and (callable(self._drop_rate) or self.ramp > 1)

    def wait(self, rows: int, of_rows: int | None) -> None:
        """Count a batch of ``rows`` rows; warn, once, if the rate should have changed by now.

        ``of_rows``: the number of rows in the data set, if it is known.
        """
        own = self.__dict__  # faster than nn.Module's own __setattr__, which looks for parameters first
        own["batches_waited"] += 1
        own["rows_waited"] += rows * world_size()
        twice = of_rows is not None and self.rows_waited > 2 * of_rows
        if not twice and self.batches_waited <= LONG_WAIT:
            return
        self.is_told = True  # once is enough
        seen = "every row was seen twice" if twice else f"{LONG_WAIT:,} batches were"
        long = "" if twice else " If an epoch is longer than that, all is well."
        warnings.warn(
            f"The drop rate changes with the time T, but {seen} at T = 1, with a rate of {self.rate:g}. Call step() "
            f"once an epoch, or once an update, as your schedule counts; or use the framework's RobustCallback.{long}",
            UserWarning,
            stacklevel=5,  # where the module was called
        )

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.T)

    def set_extra_state(self, state: Tensor) -> None:
        self.at(int(state))


def rate_function(drop_rate: float | RateAt, ramp: int) -> RateAt:
    """The drop rate as a function of the time."""
    if drop_rate == "auto":
        raise InputError(
            "drop_rate is 'auto', but a loss sees one batch at a time. find_drop_rate runs your loop at several rates, "
            "and lets the rows choose."
        )
    if callable(drop_rate):
        if ramp:
            raise InputError("ramp is for a drop_rate that is a number; this one is a function of T already.")
        return drop_rate
    check_rate("drop_rate", drop_rate)
    check_count("ramp", ramp, 0)
    return partial(rising, drop_rate=drop_rate, ramp=ramp)
