"""Figures as plain values, which `svg` draws for a page and `pictures` with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 40  # of a histogram
MOST_POINTS = 400  # of a line: more would not be visible in a figure of some 400 pixels
R2_FLOOR = -0.1  # R2 has no lower bound: curves below this are cut off


@dataclass(frozen=True)
class Line:
    """A value at each x, None where it is missing."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True)
class Lines:
    """Curves over the epochs."""

    title: str
    y_label: str
    lines: tuple[Line, ...]
    x_label: str = "epoch"
    log: bool = False
    lowest: float | None = None  # values below are not shown


@dataclass(frozen=True)
class Histogram:
    """Counts of several groups of rows over the same bins."""

    title: str
    x_label: str
    edges: tuple[float, ...]  # of the bins: one more than there are bins
    counts: Mapping[str, tuple[int, ...]]  # by group
    y_label: str = "rows"
    open_ended: bool = False  # whether the last bin also holds all values beyond it


Figure = Lines | Histogram


def line(label: str, values: Sequence[Any]) -> Line:
    """One value per epoch, from 1 on; a long run is thinned out to ``MOST_POINTS``, and keeps its last value."""
    places = list(range(len(values)))
    if len(places) > MOST_POINTS:
        stride = math.ceil(len(places) / MOST_POINTS)
        places = sorted({*places[::stride], places[-1]})
    return Line(label, tuple(place + 1 for place in places), tuple(finite(values[place]) for place in places))


def finite(value: Any) -> float | None:
    """A value that is a finite number; else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def of_epochs(history: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The entry ``name`` of every epoch's record."""
    return [record.get(name) for record in history]


def test_figure(title: str, metric: str, histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Lines:
    """The metric on the test rows, one line per run."""
    lines = tuple(line(name, of_epochs(history, "test")) for name, history in histories.items())
    return Lines(title, metric, lines, lowest=R2_FLOOR if metric == "r2" else None)


def rate_figure(history: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Lines | None:
    """Shares by epoch. ``names`` maps names in the records to labels in the figure; None if it is empty."""
    lines = tuple(line(label, of_epochs(history, name)) for name, label in names.items())
    title = " and ".join(names.values())
    return Lines(f"{title[:1].upper()}{title[1:]}", "share", lines) if lines else None


def vote_figure(pick: Mapping[str, Any]) -> Lines | None:
    """Each drop rate's margin against the chosen one in the vote of held-out rows, ± two standard errors."""
    rates, margins, errors = (
        [finite(each) for each in pick.get(name) or []] for name in ("rates", "margins", "errors")
    )
    if not rates or None in rates or not len(rates) == len(margins) == len(errors):
        return None
    x = tuple(each or 0.0 for each in rates)

    def shifted(times: float) -> tuple[float | None, ...]:
        pairs = zip(margins, errors, strict=True)
        return tuple(None if margin is None or error is None else margin + times * error for margin, error in pairs)

    names = {"margin": 0, "two standard errors below": -2, "two standard errors above": 2}
    lines = tuple(Line(name, x, shifted(times)) for name, times in names.items())
    return Lines("The vote on the drop rate", "margin against the pick", lines, x_label="drop rate")


def bound_figure(history: Sequence[Mapping[str, Any]]) -> Lines | None:
    """The measured error of the gradient beside its bounds; None if it was not measured."""
    measured = [record.get("gradient_error") or {} for record in history]
    if not any(measured):
        return None
    names = {"error": "measured error", "theorem2": "bound of Theorem 2", "lemma1": "bound of Lemma 1"}
    lines = (line(label, of_epochs(measured, name)) for name, label in names.items())
    shown = tuple(each for each in lines if any(value is not None and value > 0 for value in each.y))
    return Lines("Error of the gradient and its bounds", "norm", shown, log=True) if shown else None


def histogram(title: str, x_label: str, groups: Mapping[str, NDArray[Any]], shown: float = 0.995) -> Histogram | None:
    """Groups of values over common bins, up to the quantile ``shown``; the last bin also holds all values beyond it.

    None if no value is finite.
    """
    known = [values[np.isfinite(values)] for values in groups.values()]
    everything = np.concatenate(known) if known else np.empty(0)
    if not len(everything):
        return None
    low, high, most = float(everything.min()), float(np.quantile(everything, shown)), float(everything.max())
    if high <= low:  # nearly all values are equal
        high = most if most > low else low + (abs(low) or 1.0)
    edges = np.linspace(low, high, BINS + 1)
    beyond = any(bool((values > high).any()) for values in groups.values())
    counts = {
        name: tuple(int(count) for count in np.histogram(np.minimum(values[~np.isnan(values)], high), edges)[0])
        for name, values in groups.items()
    }
    return Histogram(title, x_label, tuple(edges.tolist()), counts, open_ended=beyond)


def value_range(figure: Lines) -> tuple[float, float]:
    """The lowest and highest value that is shown, with a margin if the axis is linear."""
    floor = -math.inf if figure.lowest is None else figure.lowest
    values = [value for each in figure.lines for value in each.y if value is not None]
    shown = [value for value in values if value >= floor and (value > 0 or not figure.log)]
    if not shown:
        return (floor, floor + 1.0) if math.isfinite(floor) else (0.1, 1.0)
    low, high = min(shown), max(shown)
    if figure.log:
        return (low, high) if high > low else (low / 2, high * 2)
    air = 0.04 * (high - low) or 0.05 * (abs(high) or 1.0)
    return max(low - air, floor), high + air


def unseen(figure: Lines) -> list[str]:
    """The lines that lie below the shown range in every epoch."""
    floor = figure.lowest
    if floor is None:
        return []
    return [each.label for each in figure.lines if not any(value is not None and value >= floor for value in each.y)]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, ``most`` of them at most: steps of 1, 2 or 5 times a power of ten."""
    if not high > low or not math.isfinite(high - low):
        return [low]
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 5, 10, 20):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [place * step for place in range(first, last + 1)]
    return [low, high]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between the two values, or the values themselves if there are none."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / 6))
    return [10.0**power for power in range(first, last + 1, stride)] or [low, high]


def short(value: float, digits: int = 6) -> str:
    """A number as an axis shows it."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    mantissa, power = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(power)}"


def described(figure: Figure) -> str:
    """A figure in a sentence, for screen readers."""
    if isinstance(figure, Histogram):
        parts = [f"{name}: {sum(counts)} rows" for name, counts in figure.counts.items()]
        return f"{figure.title}. Histogram over {figure.x_label}. {'; '.join(parts)}."
    parts = []
    for each in figure.lines:
        values = [value for value in each.y if value is not None]
        parts.append(
            f"{each.label} from {short(values[0], 4)} to {short(values[-1], 4)}" if values else f"{each.label}: none"
        )
    return f"{figure.title}. {figure.y_label} by {figure.x_label}. {'; '.join(parts)}."


def drawable(figures: Iterable[Figure | None]) -> list[Figure]:
    """The figures that are not None."""
    return [figure for figure in figures if figure is not None]
