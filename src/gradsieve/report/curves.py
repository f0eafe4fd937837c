"""Test curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradsieve.report.figures import R2_FLOOR
from gradsieve.report.sheets import new_sheet, save_sheet

Curves = Mapping[str, Sequence[float]]  # by label, one value per epoch


def draw_curves(panels: Mapping[str, Curves], path: Path) -> None:
    """One panel per task, one line per method. Values below ``R2_FLOOR`` are cut off."""
    figure = new_sheet(5.2 * len(panels), 3.6)
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for label, values in curves.items():
            style = "--" if "clean" in label else "-"
            name = label if max(values) >= R2_FLOOR else f"{label} (below the picture: {values[-1]:.1f})"
            axes.plot(range(1, len(values) + 1), values, style, label=name, linewidth=1.6)
        low = min((value for values in curves.values() for value in values if value >= R2_FLOOR), default=R2_FLOOR)
        axes.set_ylim(max(R2_FLOOR, low - 0.02), 1.0)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="best")
    save_sheet(figure, path, dpi=150)
