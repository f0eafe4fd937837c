"""Test curves of a whole table: one panel per row, one line per method, bands for the spread over the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradsieve.report.figures import R2_FLOOR
from gradsieve.report.sheets import new_sheet, save_sheet

Curve = Sequence[float | None]  # one value per epoch, None for NaN
Panel = Mapping[str, Sequence[Curve]]  # by label, one curve per seed
COLUMNS = 4  # of panels, at most


def draw_bands(panels: Mapping[str, Panel], path: Path) -> None:
    """Draw means over the seeds with bands of one standard deviation to each side, cut off at ``R2_FLOOR``."""
    labels = list(dict.fromkeys(label for panel in panels.values() for label in panel))
    colours = {label: f"C{number % 10}" for number, label in enumerate(labels)}
    columns = min(COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    # The extra height is for the legend, below the panels.
    figure = new_sheet(3.4 * columns, 2.6 * lines + 0.3 + 0.2 * math.ceil(len(labels) / columns))
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, panel) in zip(grid, panels.items(), strict=False):
        lost = []
        for label, curves in panel.items():
            mean, spread = over_seeds(curves)
            if all(not value >= R2_FLOOR for value in mean):
                lost.append(label)
                continue
            epochs = range(1, len(mean) + 1)
            axes.plot(epochs, mean, color=colours[label], linewidth=1.3)
            low = [value - width for value, width in zip(mean, spread, strict=True)]
            high = [value + width for value, width in zip(mean, spread, strict=True)]
            axes.fill_between(epochs, low, high, color=colours[label], alpha=0.2, linewidth=0)
        if axes.get_ylim()[0] < R2_FLOOR:
            axes.set_ylim(bottom=R2_FLOOR)
        axes.set_title(title if not lost else f"{title} (below: {', '.join(lost)})", fontsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    handles = [figure.axes[0].plot([], [], color=colour, label=label)[0] for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns * 2, fontsize=8)
    save_sheet(figure, path, dpi=110)


def over_seeds(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation in each epoch, up to the end of the shortest curve."""
    means, spreads = [], []
    for values in zip(*curves, strict=False):
        numbers = [math.nan if value is None else value for value in values]
        mean = sum(numbers) / len(numbers)
        means.append(mean)
        squares = sum((number - mean) ** 2 for number in numbers)
        spreads.append(math.sqrt(squares / (len(numbers) - 1)) if len(numbers) > 1 else 0.0)
    return means, spreads
