"""Scales that wrong values cannot break: medians and quartiles instead of means and standard deviations.

Inputs are clipped as well, because wrong targets that follow a heavy-tailed input outweigh the honest ones. The clip is
smooth: ``z / sqrt(1 + (z / clip)^2)`` keeps the order of the values and stays within ``clip``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.errors import InputError

Array = NDArray[Any]  # float32 or float64

CLIP = 3.0  # interquartile ranges; docs/estimators.md compares 3 with 10
NORMAL_IQR = 1.3489795003921634  # the interquartile range of a standard normal distribution
FAR = 5.0  # robust standard deviations at which targets are clipped if rows are dropped
MORE = 0.02  # a warning comes if the share of targets beyond ``FAR`` exceeds the drop rate by this: not all are wrong
FARTHEST = 1e15  # where targets are clipped in any case: the square of a larger one overflows float32
BLOCK = 2**21  # values scaled at a time: a double-precision copy of all may not fit into memory


@dataclass(frozen=True)
class Scale:
    """Where the middle of each column lies, and how wide it is."""

    centre: Array  # (d,) float64
    width: Array  # (d,) float64, above 0

    def apply(self, values: Array) -> Array:
        """``values`` (N, d) in widths from the centre, float64."""
        # A difference of two large numbers of opposite sign may overflow; half of each does not.
        return (values / 2 - self.centre / 2) / (self.width / 2)

    def invert(self, scaled: Array) -> Array:
        """The values that ``scaled`` (N, d) stand for."""
        return scaled * self.width + self.centre


def robust_scale(values: Array, weights: Array | None = None) -> Scale:
    """The median and the interquartile range of each column of ``values`` (N, d).

    If half of a column is one value, the range is 0, and the median distance of the others from that value is used: 1
    for a column of zeros and ones, however rare the ones are. A constant column has the width 1.
    """
    lower, centre, upper = quantiles(values, (0.25, 0.5, 0.75), weights)
    width = np.maximum(upper / 2 - lower / 2, 0) * 2
    rounding = 10 * np.finfo(np.float64).eps * np.abs(centre)
    for column in np.flatnonzero(width <= rounding):
        distance = np.abs(values[:, column].astype(np.float64) - centre[column])
        others = distance > rounding[column]
        own_weights = None if weights is None else weights[others]
        width[column] = quantiles(distance[others, None], (0.5,), own_weights)[0, 0] if others.any() else 1.0
    width = np.minimum(width, np.finfo(np.float64).max)
    return Scale(centre, np.maximum(width, np.finfo(np.float64).tiny * 4))


def target_scale(values: Array, weights: Array | None = None) -> Scale:
    """The scale of targets (N, q), in standard deviations of a normal distribution with such quartiles."""
    scale = robust_scale(values, weights)
    return Scale(scale.centre, scale.width / NORMAL_IQR)


def quantiles(values: Array, shares: tuple[float, ...], weights: Array | None = None) -> Array:
    """(shares, d) for each share, the smallest value that at least that share of a column's weight does not exceed.

    Always one of the column's own values, so that a row of weight 2 is the same as two rows.
    """
    if weights is None:
        exact = (column.astype(np.float64, copy=False) for column in values.T)  # one at a time, to save memory
        return np.stack([np.quantile(column, shares, method="inverted_cdf") for column in exact], axis=1)
    found = np.empty((len(shares), values.shape[1]))
    for column in range(values.shape[1]):
        order = np.argsort(values[:, column], kind="stable")
        reached = np.cumsum(weights[order])
        places = np.searchsorted(reached, np.array(shares) * reached[-1])
        found[:, column] = values[order[np.minimum(places, len(order) - 1)], column]
    return found


def scale_inputs(values: Array, scale: Scale, clip: float = CLIP) -> NDArray[np.float32]:
    """Inputs as a network reads them, float32: centred, in interquartile ranges, and smoothly clipped."""
    scaled = np.empty(values.shape, dtype=np.float32)
    step = max(1, BLOCK // max(1, values.shape[1]))
    for start in range(0, len(values), step):
        z = scale.apply(values[start : start + step].astype(np.float64, copy=False))
        # hypot, because (z / clip)^2 may overflow and would send the farthest value to the middle.
        scaled[start : start + step] = z if np.isinf(clip) else z / np.hypot(1, z / clip)
    return scaled


def scale_targets(values: Array, scale: Scale, drops: bool) -> NDArray[np.float32]:
    """Targets as a network learns them, float32.

    Even a method that ``drops`` rows trains on some wrong ones, while its drop rate rises and in batches with more of
    them than usual. One that lies a thousand widths away would undo many steps, so targets are clipped at ``FAR``.
    """
    farthest = FAR if drops else FARTHEST
    return np.clip(scale.apply(values.astype(np.float64, copy=False)), -farthest, farthest).astype(np.float32)


def far_targets(values: Array, scale: Scale, drop_rate: float) -> str:
    """A warning if clearly more targets (N, q) are clipped than rows are dropped; else empty."""
    share = float((np.abs(scale.apply(values.astype(np.float64, copy=False))) > FAR).any(1).mean())
    if not drop_rate or share <= drop_rate + MORE:
        return ""
    return (
        f"{share:.0%} of the targets lie more than {FAR:g} robust standard deviations from their median and are "
        f"clipped there, but only {drop_rate:.0%} of the rows are dropped. If these targets are wrong, drop as many; "
        "if they are right, learn their logarithms, or set the drop rate to 0, which clips nothing."
    )


def check_clip(clip: float) -> float:
    """A clip is a positive number; infinity clips nothing."""
    if isinstance(clip, bool) or not isinstance(clip, int | float) or not clip > 0:
        raise InputError(f"input_clip is {clip!r}, but must be a number above 0 (float('inf') for no clip).")
    return float(clip)
