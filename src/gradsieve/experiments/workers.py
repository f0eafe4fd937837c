"""Several runs at a time, each in a process of its own.

A worker talks with the grid over one pipe. While it trains, a thread listens: an order to stop, and the end of the
grid's own process, both reach the run as Ctrl-C does, so that it saves its state. Workers leave the terminal's group:
there, one Ctrl-C would come twice, and a second one does not wait for the save.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Literal, NamedTuple

from gradsieve.arguments import argument, spelled
from gradsieve.errors import GradsieveError
from gradsieve.experiments.remote_folder import Remote, working_folder
from gradsieve.training.interrupt import Interrupted
from gradsieve.training.run import Run

Kind = Literal["done", "diverged", "stopped", "error", "crash"]


class Outcome(NamedTuple):
    """How the attempt at a run ended."""

    kind: Kind
    text: str = ""


class Task(NamedTuple):
    """A run and its folder; ``remote`` where that is a copy of one at an address."""

    run: Run
    path: Path
    remote: Remote | None = None
    flags: Mapping[str, str] = {}  # by which the one who asked for it knows its arguments


def attempt(task: Task) -> Outcome:
    """Train, or go on training. A run that diverged is a result, and no reason to stop the others."""
    from gradsieve.training.loop import train

    with warnings.catch_warnings():
        # The paper's own rows go beyond the rate that its bounds allow: not worth a line for every run.
        warnings.filterwarnings("ignore", message="The rate is")
        try:
            with spelled(task.flags), working_folder(task.path, task.remote) as path:
                train(task.run, path, resume=True)
        except Interrupted as stop:
            return Outcome("stopped", str(stop))
        except GradsieveError as error:  # its own class: the training failed; a subclass: what it was given did
            return Outcome("diverged" if type(error) is GradsieveError else "error", str(error))
    return Outcome("done")


def work(orders: Connection, count: int) -> None:
    """The life of one worker of ``count``: one run after the other, until there is no more or nobody who asks."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between two runs there is nothing to save
    import torch  # takes seconds, in which a signal may come

    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    tasks: SimpleQueue[Task | None] = SimpleQueue()
    threading.Thread(target=listen, args=(orders, tasks), daemon=True).start()
    while (task := tasks.get()) is not None:
        signal.signal(signal.SIGINT, stop_early)  # until the loop listens itself
        try:
            outcome = attempt(task)
        except BaseException:
            outcome = Outcome("crash", traceback.format_exc())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # nobody listens any more
            orders.send(outcome)


def stop_early(number: int, frame: FrameType | None) -> None:
    raise Interrupted("stopped before its first step")


def listen(orders: Connection, tasks: SimpleQueue[Task | None]) -> None:
    """Pass tasks on; when they end, stop the run that is at work."""
    with contextlib.suppress(EOFError, OSError):
        while (task := orders.recv()) is not None:
            tasks.put(task)
    tasks.put(None)
    os.kill(os.getpid(), signal.SIGINT)


class Worker(NamedTuple):
    """A worker as the grid sees it."""

    process: BaseProcess
    pipe: Connection


@contextlib.contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    """So many workers that share the cores; in the end they save what they are at, and go."""
    context = multiprocessing.get_context("spawn")  # a forked copy of a process that used CUDA or threads is broken
    team = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, count))
            process.start()
            theirs.close()  # so that a dead worker's pipe ends
            team.append(Worker(process, ours))
        yield team
    finally:
        for worker in team:
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
        for worker in team:
            worker.process.join()


def cause_of_death(code: int | None) -> str:
    """Why a worker is gone, as far as its exit code tells."""
    hint = f" If memory was short, take fewer {argument('jobs')}." if code == -9 else ""
    return f"Its process died (exit code {code}).{hint}"


def run_in_workers(
    tasks: Sequence[Task],
    count: int,
    started: Callable[[int], None],
    ended: Callable[[int, Outcome], None],
) -> None:
    """Hand out tasks by number; ``ended`` may raise to stop them all."""
    waiting = list(range(len(tasks)))[::-1]
    with workers(min(count, len(tasks))) as team:
        at_work: dict[Connection, tuple[Worker, int]] = {}

        def hand_out(worker: Worker) -> None:
            number = waiting.pop()
            worker.pipe.send(tasks[number])
            at_work[worker.pipe] = worker, number
            started(number)

        for worker in team:
            hand_out(worker)
        while at_work:
            for pipe in wait(list(at_work)):
                worker, number = at_work.pop(pipe)  # type: ignore[call-overload]
                try:
                    outcome = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    outcome = Outcome("crash", cause_of_death(worker.process.exitcode))
                ended(number, outcome)
                if waiting:
                    hand_out(worker)
