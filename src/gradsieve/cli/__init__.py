"""The command ``gradsieve``: thin wrappers of functions. Commands import torch inside, so that help is instant."""

from __future__ import annotations

import os
import sys
import warnings

from gradsieve.cli import files, paper, training  # noqa: F401  # importing them adds their commands
from gradsieve.cli.options import app, note
from gradsieve.errors import GradsieveError, RankError


def check_alone(command: str = "--help") -> None:
    """Refuse several ranks for commands other than ``train``: each would do the same work on the same files."""
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if ranks > 1 and command != "train" and not command.startswith("-"):
        raise RankError(
            f"gradsieve {command} works in one process, but torchrun has started {ranks} of it. Start it without "
            "torchrun. Over several ranks, use gradsieve train, or RobustLoss in your own loop.",
            quiet=os.environ["RANK"] != "0",
        )


def main() -> None:
    """Run the command. Gradsieve's own errors, and warnings, are printed as one line without a traceback."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.path.append(os.getcwd())  # for user-defined methods, models and so on (module:name)
    try:
        check_alone(*sys.argv[1:2])
        app()
    except GradsieveError as error:
        if not getattr(error, "quiet", False):  # of several ranks, only the first prints an error
            note(f"error: {error}")
        sys.exit(2)
