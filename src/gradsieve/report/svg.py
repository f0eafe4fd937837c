"""Figures as inline SVG: small pure functions. Colours are CSS classes, for the page's light and dark modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gradsieve.report.figures import (
    Figure,
    Histogram,
    Line,
    Lines,
    described,
    log_ticks,
    short,
    ticks,
    unseen,
    value_range,
)
from gradsieve.report.markup import Html, join, tag

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 18, 10, 42  # margins in pixels, for the axes
COLOURS = 8  # CSS classes c0 to c7; further lines are dashed


class Scale(NamedTuple):
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def draw(figure: Figure) -> Html:
    """A figure with its title and, if there are several lines or groups, a legend."""
    chart = draw_lines(figure) if isinstance(figure, Lines) else draw_histogram(figure)
    labels = [each.label for each in figure.lines] if isinstance(figure, Lines) else list(figure.counts)
    below = unseen(figure) if isinstance(figure, Lines) else []
    entries = [legend_entry(place, label, label in below) for place, label in enumerate(labels)]
    legend = tag("span", entries, class_="legend") if len(labels) > 1 or below else None
    caption = tag("figcaption", tag("strong", figure.title), legend)
    return tag("figure", caption, chart)


def legend_entry(place: int, label: str, is_below: bool) -> Html:
    """The colour of a line, and its name."""
    swatch = tag(
        "svg",
        tag("path", d="M0 6H22", class_=stroke(place), stroke_dasharray=dashes(place), stroke_width=4),
        width=22,
        height=12,
        aria_hidden="true",
    )
    return tag("span", swatch, label, " (below the picture)" if is_below else None)


def draw_lines(figure: Lines) -> Html:
    """Curves over the epochs."""
    low, high = value_range(figure)
    places = [x for each in figure.lines for x in each.x] or [1]
    first, last = min(places), max(places)
    if last <= first:
        first, last = first - 1, last + 1
    x, y = Scale(first, last, LEFT, WIDTH - RIGHT), Scale(low, high, HEIGHT - BOTTOM, TOP, figure.log)
    x_ticks = [place for place in ticks(first, last) if place == int(place) or figure.x_label != "epoch"]
    y_ticks = log_ticks(low, high) if figure.log else ticks(low, high)
    curves = join(curve(place, each, x, y) for place, each in enumerate(figure.lines))
    return canvas(figure, axes(x, y, x_ticks, y_ticks, figure.x_label, figure.y_label), inside(curves))


def curve(place: int, line: Line, x: Scale, y: Scale) -> Html:
    """A line, interrupted where values are missing; a single value is drawn as a dot."""
    parts, pen_is_down = [], False
    points = [
        (x(at), None if value is None or (y.log and value <= 0) else y(value))
        for at, value in zip(line.x, line.y, strict=True)
    ]
    for at, value in points:
        if value is None:
            pen_is_down = False
            continue
        parts.append(f"{'L' if pen_is_down else 'M'}{at:.1f} {bounded(value):.1f}")
        pen_is_down = True
    if len(parts) == 1:  # a path of one point has no length
        parts.append("h0.1")
    return tag("path", d="".join(parts), class_=stroke(place), stroke_dasharray=dashes(place))


def bounded(pixel: float) -> float:
    """A pixel within the range that every browser can draw."""
    return max(-1e4, min(1e4, pixel))


def draw_histogram(figure: Histogram) -> Html:
    """Stacked bars of the groups, which together are the histogram of all rows."""
    totals = [sum(column) for column in zip(*figure.counts.values(), strict=True)]
    x = Scale(figure.edges[0], figure.edges[-1], LEFT, WIDTH - RIGHT)
    y = Scale(0, max([*totals, 1]) * 1.04, HEIGHT - BOTTOM, TOP)
    heights, bars = [0] * len(totals), []
    for group, counts in enumerate(figure.counts.values()):
        for place, count in enumerate(counts):
            if count:
                left, right = x(figure.edges[place]), x(figure.edges[place + 1])
                bottom, top = y(heights[place]), y(heights[place] + count)
                bars.append(bar(group, left, right, top, bottom))
                heights[place] += count
    x_ticks = ticks(figure.edges[0], figure.edges[-1])
    label = f"{figure.x_label} (last bar: and more)" if figure.open_ended else figure.x_label
    whole = [place for place in ticks(*y[:2]) if place == int(place)]
    return canvas(figure, axes(x, y, x_ticks, whole, label, figure.y_label), inside(join(bars)))


def bar(group: int, left: float, right: float, top: float, bottom: float) -> Html:
    """One bar, with a thin gap to the next."""
    width = max(right - left - 0.8, 0.5)
    shape = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{width:.1f}", "height": f"{bottom - top:.1f}"}
    return tag("rect", **shape, class_=f"bar f{group % COLOURS}")


def axes(x: Scale, y: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str) -> Html:
    """Grid lines with numbers, and the labels of the axes."""
    across = [
        (tag("path", d=f"M{x.start} {y(at):.1f}H{x.end}"), label(x.start - 6, y(at) + 4, short(at), "end"))
        for at in y_ticks
    ]
    upright = [
        (tag("path", d=f"M{x(at):.1f} {y.end}V{y.start}"), label(x(at), y.start + 17, short(at))) for at in x_ticks
    ]
    names = label((x.start + x.end) / 2, HEIGHT - 6, x_label), turned(12, (y.start + y.end) / 2, y_label)
    return tag("g", across, upright, names, class_="axes")


def label(x: float, y: float, words: str, anchor: str = "middle") -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def turned(x: float, y: float, words: str) -> Html:
    """A label that is rotated to read upwards."""
    return tag("text", words, transform=f"translate({x:.1f} {y:.1f}) rotate(-90)", text_anchor="middle")


def inside(drawing: Html) -> Html:
    """A drawing clipped to the plot's area, by a nested SVG."""
    width, height = WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP
    box = {"x": LEFT, "y": TOP, "width": width, "height": height, "viewBox": f"{LEFT} {TOP} {width} {height}"}
    return tag("svg", drawing, **box)


def canvas(figure: Figure, *parts: Html) -> Html:
    """The picture, with a sentence for screen readers."""
    words = described(figure)
    return tag("svg", tag("title", words), *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=words)


def stroke(place: int) -> str:
    return f"line c{place % COLOURS}"


def dashes(place: int) -> str | None:
    """Lines beyond the first eight are dashed, and then dotted, because colours repeat."""
    return (None, "6 3", "2 3")[min(2, place // COLOURS)]
