"""Finding the files of a data set, with an error that says what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gradsieve.arguments import argument
from gradsieve.data.published import PUBLISHED
from gradsieve.errors import InputError


def find(data: str, folder: str | Path | None, layout: str, *candidates: str) -> Path:
    """The first of ``candidates``, paths below ``folder``, that exists."""
    get = f" gradsieve data fetch {data} gets it." if data in PUBLISHED else ""
    if folder is None:
        raise InputError(
            f"{data} is read from files, and no folder was given ({argument('data_dir')}). It must hold {layout}.{get}"
        )
    for candidate in candidates:
        if (Path(folder) / candidate).exists():
            return Path(folder) / candidate
    what = f"no {candidates[0]} in {folder}" if Path(folder).is_dir() else f"no folder {folder}"
    raise InputError(f"{data}: there is {what}. The folder must hold {layout}.{get}")


def files_below(folder: Path, hidden: tuple[str, ...], above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Every file below a folder, except files and folders whose name begins with one of ``hidden``.

    Links to folders are followed, but not to a folder that they lie in (``above``), which would never end.
    """
    place = os.path.realpath(folder)
    if place in above:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be looked into ({error.strerror}). Make it readable, or move it away."
        ) from error
    for entry in entries:
        if entry.name.startswith(hidden):
            continue
        if entry.is_dir():
            yield from files_below(folder / entry.name, hidden, above | {place})
        else:
            yield folder / entry.name
