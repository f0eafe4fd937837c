"""Arguments as the caller writes them: by name in Python, as flags on the command line.

An error message is written once, and names an argument by `argument`. That gives the name in Python, unless a command
is running that has an option for it: then it gives the command's flag.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# The flags of the running command by their names in Python; empty if Python itself called. One for the whole process,
# not for each thread, because some threads read rows and report what is wrong with them.
_SPOKEN: list[Mapping[str, str]] = [{}]


def flags() -> Mapping[str, str]:
    """How arguments are spelled now: pass it to `spelled` in a worker process."""
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
    """Whether the caller can give an argument: Python always can, a command only if it has an option for it."""
    return not flags() or name in flags()


def pair(option: str, value: Any) -> str:
    """One of the options of a method, model or data set as a flag takes it: name=value."""
    return f"{option}={value if isinstance(value, str) else json.dumps(value)}"


def elsewhere(first: str = "", *, what: str = "folder", name: str = "out") -> str:
    """The advice if nothing can be written to the place that an argument names, perhaps after a ``first`` advice."""
    choose = f"{first}, or choose" if first else "Choose"
    return f"{choose} another {what} as {argument(name)}."


def again() -> str:
    """The advice to try again, with the option to resume if the caller has one."""
    how = f" (a run or a streamed fit goes on with {argument('resume', True)})" if is_offered("resume") else ""
    return f"try again{how}"
