"""What all tests share: one thread, and the command."""

import importlib
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

# Small tensors gain nothing from threads, and threads that wait for each other on busy cores cost minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
# And they import us, some hundred times: where nothing compiled is kept, each would compile us anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

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


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Write a module of a user's own, which is then imported anew, as by another process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of two texts in one second it would keep the first

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A folder that ``make(folder)`` fills, by one of the processes that tests run in: what takes long is done once."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder_of(name, make):
        folder = base / name
        with FileLock(f"{folder}.lock"):
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                (folder / "done").touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def run_ranks(once):
    """The folder in which ``world`` processes leave what they find: ``main(rank, folder)`` of a test file."""

    def folder_of(file, world):
        def make(folder):
            command = [sys.executable, Path(__file__).with_name("forked_ranks.py"), file, str(world), folder]
            forker = subprocess.Popen(command, start_new_session=True)  # pytest shows what they say
            try:
                assert forker.wait() == 0, "a rank failed"
            finally:
                if forker.poll() is None:
                    os.killpg(forker.pid, signal.SIGKILL)

        return once(Path(file).stem, make)

    return folder_of
