"""Figures of matplotlib: an empty one, and how it is saved."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradsieve.errors import MissingExtraError
from gradsieve.training.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_sheet(width: float, height: float) -> Figure:
    """An empty figure of this size in inches. It is not made by pyplot, which has global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "report", "Drawing figures") from None
    sheet = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(sheet)
    return sheet


def save_sheet(sheet: Figure, path: Path, **options: Any) -> None:
    """Save a figure atomically, in the format of the file name's extension."""
    content = io.BytesIO()
    sheet.savefig(content, format=path.suffix.removeprefix("."), **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.getvalue())
