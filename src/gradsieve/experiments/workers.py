"""Several runs at a time, each in its own process.

A worker communicates with the grid's process over one pipe. While it trains, a thread listens on the pipe: an order to
stop, or the end of the grid's process, interrupts the run like Ctrl-C, so that it saves its state. Workers leave the
terminal's process group: otherwise one Ctrl-C would reach them twice, and the second would interrupt the save.
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
    """A run and its folder; ``remote`` is set if the run works in a copy of a folder at an address."""

    run: Run
    path: Path
    remote: Remote | None = None
    flags: Mapping[str, str] = {}  # the command-line names of arguments, for error messages


def attempt(task: Task) -> Outcome:
    """Train a run, or go on with it. Divergence is an outcome that does not stop other runs."""
    from gradsieve.training.loop import train

    with warnings.catch_warnings():
        # Rows of the paper exceed the rate for which its bounds hold: no warning for every run.
        warnings.filterwarnings("ignore", message="The rate is")
        try:
            with spelled(task.flags), working_folder(task.path, task.remote) as path:
                train(task.run, path, resume=True)
        except Interrupted as stop:
            return Outcome("stopped", str(stop))
        except GradsieveError as error:  # the class itself: training diverged; a subclass: the input is wrong
            return Outcome("diverged" if type(error) is GradsieveError else "error", str(error))
    return Outcome("done")


def work(orders: Connection, count: int) -> None:
    """The main function of one of ``count`` workers: trains tasks until there are none, or the grid's process ends."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between two runs there is nothing to save
    import torch  # takes seconds: after the signal handler is set

    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    tasks: SimpleQueue[Task | None] = SimpleQueue()
    threading.Thread(target=listen, args=(orders, tasks), daemon=True).start()
    while (task := tasks.get()) is not None:
        signal.signal(signal.SIGINT, stop_early)  # until the training loop sets its own handler
        try:
            outcome = attempt(task)
        except BaseException:
            outcome = Outcome("crash", traceback.format_exc())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # the grid's process has ended
            orders.send(outcome)


def stop_early(number: int, frame: FrameType | None) -> None:
    raise Interrupted("stopped before its first step")


def listen(orders: Connection, tasks: SimpleQueue[Task | None]) -> None:
    """Pass tasks on; when there are no more, or the pipe is closed, stop the current run."""
    with contextlib.suppress(EOFError, OSError):
        while (task := orders.recv()) is not None:
            tasks.put(task)
    tasks.put(None)
    os.kill(os.getpid(), signal.SIGINT)


class Worker(NamedTuple):
    """A worker, for the grid's process."""

    process: BaseProcess
    pipe: Connection


@contextlib.contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    """``count`` workers that share the CPU cores. At the end they save their current runs, and stop."""
    context = multiprocessing.get_context("spawn")  # fork is not safe in a process that uses CUDA or threads
    team = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, count))
            process.start()
            theirs.close()  # so that reading from a dead worker ends with EOFError
            team.append(Worker(process, ours))
        yield team
    finally:
        for worker in team:
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
        for worker in team:
            worker.process.join()


def cause_of_death(code: int | None) -> str:
    """Why a worker has died, by its exit code."""
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
