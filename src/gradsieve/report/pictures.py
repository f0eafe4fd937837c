"""The figures of a report as PNG and PDF, through matplotlib."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gradsieve.errors import InputError, MissingExtraError
from gradsieve.report.figures import Figure, Lines, unseen, value_range
from gradsieve.report.sheets import new_sheet, save_sheet
from gradsieve.report.story import certificate_figure, compared_figures, subject_figures
from gradsieve.report.subjects import Subject

DPI = 150


def save_pictures(subjects: Sequence[Subject], folder: Path) -> list[Path]:
    """Save every figure of the report as PNG and PDF. File names are numbered, so that they never collide."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "report", "Drawing figures") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be made ({error.strerror}). Choose another folder for the figures."
        ) from error
    figures = named_figures(subjects)
    return [path for name, figure in figures for path in save_picture(figure, folder / name)]


def named_figures(subjects: Sequence[Subject]) -> list[tuple[str, Figure]]:
    """The figures with their file names, without an extension."""
    found: list[tuple[str, Figure]] = [("side-by-side", figure) for figure in compared_figures(subjects)]
    for subject in subjects:
        certificate = certificate_figure(subject)
        own: Iterable[Figure] = [*subject_figures(subject), *([] if certificate is None else [certificate])]
        found += [(subject.name, figure) for figure in own]
    return [
        (f"{number:02d}-{slug(f'{name}-{figure.title}')}", figure) for number, (name, figure) in enumerate(found, 1)
    ]


def slug(text: str) -> str:
    """A text as part of a file name that is valid on every system."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "figure"


def save_picture(figure: Figure, path: Path) -> list[Path]:
    """One figure as PNG and PDF. The same figure gives the same bytes."""
    sheet = new_sheet(5.2, 3.4)
    axes = sheet.subplots()
    draw_lines(axes, figure) if isinstance(figure, Lines) else draw_bars(axes, figure)
    axes.set_title(figure.title, fontsize=10, parse_math=False)  # a $ in a name does not start a formula
    axes.set_xlabel(figure.x_label, parse_math=False)
    axes.set_ylabel(figure.y_label, parse_math=False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        for text in axes.legend(fontsize=8, loc="best").get_texts():
            text.set_parse_math(False)
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "pdf")]
    save_sheet(sheet, paths[0], dpi=DPI)
    save_sheet(sheet, paths[1], metadata={"CreationDate": None})
    return paths


def draw_lines(axes: Any, figure: Lines) -> None:
    below = unseen(figure)
    for place, line in enumerate(figure.lines):
        values = [float("nan") if value is None else value for value in line.y]
        name = f"{line.label} (below the picture)" if line.label in below else line.label
        style = ("-", "--", ":")[min(2, place // 10)]
        axes.plot(line.x, values, style, label=legend_label(name), linewidth=1.6, color=f"C{place % 10}")
    if figure.log:
        axes.set_yscale("log", nonpositive="mask")
    else:
        axes.set_ylim(*value_range(figure))
        axes.xaxis.get_major_locator().set_params(integer=figure.x_label == "epoch")


def draw_bars(axes: Any, figure: Any) -> None:
    """Stacked bars of the groups, as on the page."""
    left, right = figure.edges[:-1], figure.edges[1:]
    widths = [high - low for low, high in zip(left, right, strict=True)]
    heights = [0] * len(left)
    for name, counts in figure.counts.items():
        axes.bar(left, counts, widths, bottom=heights, align="edge", label=legend_label(name))
        heights = [height + count for height, count in zip(heights, counts, strict=True)]


def legend_label(name: str) -> str:
    """A label that matplotlib shows: it leaves out those that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name
