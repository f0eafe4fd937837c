"""Run ``gradsieve`` many times: read each command as a line of JSON, and print its exit code.

Each command is a process of its own, forked from this one, so that torch is imported once.
"""

import json
import os
import sys
from multiprocessing import get_context

import sklearn.datasets  # noqa: F401  most commands would import it
from torch import _dynamo  # noqa: F401  all commands that train would import it

import gradsieve.training.loop  # noqa: F401
from gradsieve.cli import main

TIME_LIMIT = 240  # seconds until a command is killed


def command(arguments: list[str], folder: str, log: str) -> None:
    """Run a command as from a shell in ``folder``, with all its output in the file ``log``."""
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
        process.join(TIME_LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
        print(process.exitcode, flush=True)
