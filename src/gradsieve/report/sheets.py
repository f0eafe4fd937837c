"""Matplotlib's sheets as files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradsieve.training.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_sheet(sheet: Figure, path: Path, **options: Any) -> None:
    """All of a picture or nothing, and one error where the disk is full. The name's ending says of which kind it is."""
    content = io.BytesIO()
    sheet.savefig(content, format=path.suffix.removeprefix("."), **options)
    write_whole(path, content.getvalue())
