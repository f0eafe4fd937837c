"""A table of names, read without importing what it names.

The command line lists methods, corruptions, models and data sets, and must answer
``--help`` without the seconds that importing torch takes. So a row holds where an object
lives, ``"module:attribute"``, and the object is imported when it is first asked for. Such a
place is a name too: a method or model of your own needs no row. Its code may change between
runs, so the SHA-256 of the code is recorded with a run.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from gradsieve.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names of one kind of thing, each with the place where it is defined."""

    def __init__(self, kind: str, rows: Mapping[str, str], needs: Sequence[str] = (), way: str = "") -> None:
        self.kind = kind
        self._rows = dict(rows)
        self._needs = needs  # attributes that an object of yours must have to be of this kind
        self._way = way  # how to get them, for the error if they are missing

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise InputError(unknown(self.kind, name, self._rows))
        entry = import_object(self._rows.get(name, name))
        missing = [attribute for attribute in self._needs if not hasattr(entry, attribute)]
        if missing:
            raise InputError(f"{name!r} is no {self.kind}: it has no {', '.join(missing)}. {self._way}".rstrip())
        return cast(T, entry)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._rows or ":" in name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def summary(self, name: str) -> str:
        """The object's ``summary``, or the first line of its docstring."""
        entry = self[name]
        text = getattr(entry, "summary", None) or entry.__doc__ or ""
        return text.strip().split("\n")[0].replace("``", "")


def import_object(place: str) -> Any:
    """The object at ``"module:attribute"``."""
    module, _, attribute = place.partition(":")
    try:
        entry = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ImportError) and not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise InputError(f"{place!r} cannot be imported ({error}). Expected 'module:attribute'.") from error
    # Hash the code now: later the file may differ from the code in memory. After a reload the object is a new one.
    if is_yours(module) and (place not in _codes or _codes[place][0] is not entry):
        _codes[place] = entry, code_sha256(module, entry)
    return entry


_codes: dict[str, tuple[Any, str]] = {}  # by place: the object, and the SHA-256 of its code


def sources(*names: str | None) -> dict[str, str]:
    """The SHA-256 of the code of every name that is a place outside this package, whose own version says the rest."""
    places = [name for name in names if name and ":" in name and is_yours(name)]
    for place in places:
        import_object(place)
    return {place: _codes[place][1] for place in places}


def is_yours(module: str) -> bool:
    return module.partition(".")[0] != "gradsieve"


def code_sha256(module: str, entry: Any) -> str:
    """The SHA-256 of a module's file, and of the file that defines the object if the module only imports it."""
    digest = hashlib.sha256()
    home = getattr(entry, "__module__", None) or module  # for an instance, the module of its class
    for name in dict.fromkeys(each for each in (module, home) if is_yours(each)):
        path = source_path(name)
        if path is not None:
            digest.update(path.read_bytes())
            continue
        with suppress(OSError, TypeError):  # a notebook keeps the source of its cells; some objects have no source
            digest.update(inspect.getsource(entry).encode())
    return digest.hexdigest()


def source_path(module: str) -> Path | None:
    """The file of an imported module; None if it has none, as in a notebook."""
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return path if path.is_file() else None


def unknown(kind: str, name: str, known: Mapping[str, Any]) -> str:
    """One sentence for a name that is not in the table, with the nearest that is."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no {kind} {name!r}.{hint} There are: {', '.join(known) or 'none'}."
