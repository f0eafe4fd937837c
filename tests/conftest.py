"""What all tests share: one thread, and the command."""

import os
import sys
import warnings
from typing import NamedTuple

import pytest

# Small tensors gain nothing from threads, and threads that wait for each other on busy cores cost minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it

import torch

if not torch.cuda.is_available():
    # Triton then interprets the kernels, if it is told so before anybody imports it.
    os.environ["TRITON_INTERPRET"] = "1"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gradsieve(monkeypatch, capsys):
    """The command, in this process."""
    from gradsieve.cli import main

    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main() sets its own,
    monkeypatch.setattr(sys, "path", [*sys.path])  # and adds to this

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gradsieve", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Answer(stop.value.code or 0, *capsys.readouterr())

    return run
