"""The exceptions, and warnings. Their messages say what is wrong, where, why, and how to fix it."""

from __future__ import annotations

import sys
import warnings


class GradsieveError(ValueError):
    """Every error that Gradsieve raises on purpose."""


class InputError(GradsieveError):
    """An argument, a row of data or a combination of choices that cannot work."""


class RunFolderError(GradsieveError):
    """A run folder that cannot be used as asked: another run's, finished, or not writable."""


class CheckpointError(RunFolderError):
    """A saved state that is damaged, incomplete or of another run."""


class RankError(GradsieveError):
    """Another rank failed, died or differs from the others. ``quiet``: not shown, as the first rank reports it."""

    def __init__(self, message: str, quiet: bool = False) -> None:
        super().__init__(message)
        self.quiet = quiet


class MissingExtraError(GradsieveError, ImportError):
    """An optional library that is not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs {library}: pip install "gradsieve[{extra}]"')


def warn(message: str) -> None:
    """Warn at the user's own line, however deep below it this is: Python then shows it there, and only once."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "gradsieve":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
