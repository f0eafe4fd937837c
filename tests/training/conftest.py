"""What the tests of training share: small runs, one that stops where it is told to, and a fast way to the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gradsieve.training.folder import RunFolder
from gradsieve.training.interrupt import Interrupted
from gradsieve.training.progress import Progress
from gradsieve.training.repeatable import reproducible
from gradsieve.training.run import Run, make_run
from gradsieve.training.setting import prepare
from gradsieve.training.trainer import Trainer, start

# Forks a process per command, so that torch is imported once. A child is not reaped before its end is asked
# for: until then its number cannot become another process's, and a signal to it is safe.
FORKER = """
import json, os, sys
import sklearn.datasets, torch, torch._dynamo  # the last is what a first optimizer imports
torch.set_num_threads(1)
import gradsieve.training.loop
from gradsieve.cli import main

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["gradsieve", *order["arguments"]]
        try:
            main()
        except SystemExit as stop:
            sys.stdout.flush()
            os._exit(stop.code or 0)
        os._exit(99)
    print(child, flush=True)
    sys.stdin.readline()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Command:
    """``gradsieve`` in processes of its own, one at a time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.forker = subprocess.Popen([sys.executable, "-c", FORKER], **pipes)
        self.child = 0

    def tell(self, line: str) -> int:
        self.forker.stdin.write(line + "\n")
        self.forker.stdin.flush()
        return int(self.forker.stdout.readline())

    def start(self, *arguments: str | Path) -> None:
        self.log.write_text("")
        self.child = self.tell(json.dumps({"log": str(self.log), "arguments": [str(each) for each in arguments]}))

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.child, number)

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""
        return self.tell("wait")

    def run(self, *arguments: str | Path) -> int:
        self.start(*arguments)
        return self.wait()

    def close(self) -> None:
        self.forker.stdin.close()
        self.forker.wait()


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    command = Command(tmp_path_factory.mktemp("command") / "log")
    yield command
    command.close()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits() -> Callable[..., Run]:
    """A run on the digits that takes a tenth of a second, with changes."""

    def make(method: str = "prl-l", **changes) -> Run:
        settings = {
            "corruption": "symmetric",
            "rate": 0.3,
            "epochs": 2,
            "batch_size": 64,
            "learning_rate": 1e-3,
            "ramp": 1,
        }
        return make_run("digits", method, **({**settings, "model_options": {"hidden": [16]}} | changes))

    return make


@pytest.fixture(scope="session")
def faces() -> Callable[..., Run]:
    """A run on a few small faces, with BatchNorm and dropout in the network."""

    def make(method: str = "co-prl-l", **changes) -> Run:
        settings = {
            "corruption": "signflip",
            "rate": 0.25,
            "epochs": 2,
            "ramp": 1,
            "batch_size": 16,
            "model": "cnn9",
            "model_options": {"width": 0.03},
            "data_options": {"train": 64, "test": 16, "size": 28},
        }
        return make_run("landmarks", method, **(settings | changes))

    return make


class StopAt(Progress):
    """Somebody who presses Ctrl-C after so many steps."""

    def __init__(self, step: int) -> None:
        self.last = step

    def step(self, done: int, total: int) -> None:
        if done == self.last:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="session")
def stop_at() -> Callable[[Run, Path, int], RunFolder]:
    """Train into a folder, saving a state after every step, until Ctrl-C after step ``step``."""

    def stop(run: Run, path: Path, step: int) -> RunFolder:
        setting = prepare(run)
        folder = RunFolder(path, run)
        folder.create()
        with reproducible(run.seed, setting.device), pytest.raises(Interrupted):
            Trainer(setting, start(setting), folder, StopAt(step), None, save_every=0).train()
        folder.release()
        return folder

    return stop
