"""The ranks of a test file: ``python forked_ranks.py FILE WORLD FOLDER`` calls its ``main(rank, FOLDER)`` in each.

They are forked from one process, so that torch and all that the file imports are loaded once. If ``main`` imports more,
the file may have a function ``prepare`` that imports it before the fork.
"""

import importlib
import sys
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path


def run(file: Path, world: int, folder: str) -> None:
    sys.path.insert(0, str(file.parent))
    module, process = importlib.import_module(file.stem), get_context("fork").Process
    if hasattr(module, "prepare"):
        module.prepare()
    # As daemons, they end with this process.
    ranks = [process(target=module.main, args=(rank, folder), daemon=True) for rank in range(world)]
    for rank in ranks:
        rank.start()
    while running := [rank.sentinel for rank in ranks if rank.is_alive()]:
        wait(running)
        if any(rank.exitcode for rank in ranks):
            sys.exit("a rank failed; others would wait for it")


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
