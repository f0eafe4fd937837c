"""Arguments as whoever called writes them: by their names in Python, as flags on the command line.

A message is written once, where a fault is found, and names an argument by `argument`. Python's name is what it says,
unless a command is running that has an option for it: then it is the command's flag.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# The flags of the command that is running, by the names that Python has for them: none where Python itself called. Of
# the whole process and not of a thread: rows are read, and found wrong, in threads of their own.
_SPOKEN: list[Mapping[str, str]] = [{}]


def flags() -> Mapping[str, str]:
    """How arguments are spelled now; for `spelled` in another process that works for this one."""
    return _SPOKEN[-1]


@contextmanager
def spelled(flags: Mapping[str, str]) -> Iterator[None]:
    """Name arguments by these flags while the block runs; by their names in Python where there is none."""
    _SPOKEN.append(flags)
    try:
        yield
    finally:
        _SPOKEN.pop()


def argument(name: str, value: Any = None) -> str:
    """An argument, or one with its value: ``bad_rows`` and ``bad_rows='skip'``, or --bad-rows and --bad-rows skip."""
    flag = flags().get(name)
    if flag is None:
        return name if value is None else f"{name}={value!r}"
    if value is None or value is True:
        return flag
    if isinstance(value, Mapping):
        return " ".join(shlex.join([flag, pair(*item)]) for item in value.items())
    return shlex.join([flag, str(value)])


def is_offered(name: str) -> bool:
    """Whether whoever called can give an argument: Python can, and a command that has an option for it."""
    return not flags() or name in flags()


def pair(option: str, value: Any) -> str:
    """One of the options of a method, model or data set as a flag takes it: name=value."""
    return f"{option}={value if isinstance(value, str) else json.dumps(value)}"


def elsewhere(first: str = "", *, what: str = "folder", name: str = "out") -> str:
    """The way out where nothing can be written to the place that an argument names, perhaps after a ``first`` one."""
    choose = f"{first}, or choose" if first else "Choose"
    return f"{choose} another {what} as {argument(name)}."


def again() -> str:
    """The way out once the cause is mended; a command that resumes nothing is not told how."""
    how = f" (a run or a streamed fit goes on with {argument('resume', True)})" if is_offered("resume") else ""
    return f"try again{how}"
