"""Saving matplotlib figures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradsieve.training.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_sheet(sheet: Figure, path: Path, **options: Any) -> None:
    """Save a figure atomically, in the format of the file name's extension."""
    content = io.BytesIO()
    sheet.savefig(content, format=path.suffix.removeprefix("."), **options)
    write_whole(path, content.getvalue())
