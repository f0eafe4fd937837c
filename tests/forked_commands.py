"""Runs ``gradsieve`` again and again: orders come in as lines of JSON, exit codes go out.

Each command is a process of its own, forked from this one, so that torch is imported once.
"""

import json
import os
import sys
from multiprocessing import get_context

import sklearn.datasets  # noqa: F401  which most commands would import,
from torch import _dynamo  # noqa: F401  and all that train

import gradsieve.training.loop  # noqa: F401
from gradsieve.cli import main

PATIENCE = 240  # seconds


def command(arguments: list[str], folder: str, log: str) -> None:
    """As a shell would start it there, with all that it says in a file."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(folder)
    sys.argv = ["gradsieve", *arguments]
    main()


if __name__ == "__main__":
    for order in sys.stdin:
        process = get_context("fork").Process(target=command, kwargs=json.loads(order))
        process.start()
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
        print(process.exitcode, flush=True)
