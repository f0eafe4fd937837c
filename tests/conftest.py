"""What all tests share: the environment, the command, folders that are made once, and ranks."""

import errno
import importlib
import os
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

# Small tensors gain nothing from threads, and on busy cores threads that wait for each other cost minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
# These processes import the package about a hundred times: without bytecode files, each would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import torch

if not torch.cuda.is_available():
    # Triton then interprets the kernels. It reads this when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gradsieve(monkeypatch, capsys):
    """The command, in this process."""
    from gradsieve.cli import main

    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main() replaces it
    monkeypatch.setattr(sys, "path", [*sys.path])  # main() adds to it

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gradsieve", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Answer(stop.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def full_disk(monkeypatch):
    """A context in which the disk is full when the file of a name is to appear."""

    @contextmanager
    def full(name):
        def replace(part, path):
            if Path(path).name == name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rename(part, path)

        rename = os.replace
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", replace)
            yield

    return full


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Write a user's module, which the next import reads again, as another process would."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # bytecode would hide a second text within one second

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A folder that ``make(folder)`` fills once, in one of the processes that tests run in, because it takes long."""
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
    """The folder where ``world`` processes, each running ``main(rank, folder)`` of a test file, save their results."""

    def folder_of(file, world):
        def make(folder):
            command = [sys.executable, Path(__file__).with_name("forked_ranks.py"), file, str(world), folder]
            forker = subprocess.Popen(command, start_new_session=True)  # pytest shows their output
            try:
                assert forker.wait() == 0, "a rank failed"
            finally:
                if forker.poll() is None:
                    os.killpg(forker.pid, signal.SIGKILL)

        return once(Path(file).stem, make)

    return folder_of
