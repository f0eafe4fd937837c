"""Whether the code of user-defined parts (models, methods, ...) is still that which a folder was made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradsieve.registry import source_path


def changed_code(theirs: Any, ours: Mapping[str, str]) -> str:
    """Which of the user-defined parts ``ours`` have another SHA-256 in ``theirs``, in words; empty if none."""
    known = theirs if isinstance(theirs, Mapping) else {}
    changed = dict.fromkeys(file_of(place) for place, sha256 in ours.items() if known.get(place, sha256) != sha256)
    if changed:
        return f"{' and '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since"
    missing = dict.fromkeys(file_of(place) for place in ours if place not in known)
    return f"the code of {' and '.join(missing)} was not yet on record" if missing else ""


def file_of(place: str) -> str:
    """The name of the source file of a place (module:attribute); the place itself if there is none."""
    path = source_path(place.partition(":")[0])
    return place if path is None else path.name
