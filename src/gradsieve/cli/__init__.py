"""The command ``gradsieve``: thin faces of functions. Torch is imported inside the commands, so help is instant."""

from __future__ import annotations

import os
import sys
import warnings

from gradsieve.cli import files, paper, training  # noqa: F401  # each adds its commands
from gradsieve.cli.options import app, note
from gradsieve.errors import GradsieveError, RankError


def check_alone(command: str = "--help") -> None:
    """Several ranks share a run of ``train``. Of any other command each would be a copy, at work on the same files."""
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if ranks > 1 and command != "train" and not command.startswith("-"):
        raise RankError(
            f"gradsieve {command} works in one process, but torchrun has started {ranks} of it. Start it without "
            "torchrun. Over several ranks, use gradsieve train, or RobustLoss in your own loop.",
            quiet=os.environ["RANK"] != "0",
        )


def main() -> None:
    """Run the command; an error that we foresaw, like a warning, is one line and not a trace."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.path.append(os.getcwd())  # methods, models and schedules of yours: module:name
    try:
        check_alone(*sys.argv[1:2])
        app()
    except GradsieveError as error:
        if not getattr(error, "quiet", False):  # of several ranks, the first speaks
            note(f"error: {error}")
        sys.exit(2)
