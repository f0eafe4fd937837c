"""The folder of a grid at an address that fsspec knows: s3://bucket/grid, gs://bucket/grid, file:///shared/grid.

Runs are locked, resumed and replaced file by file, which object stores cannot do. So each run works in a folder of its
own machine, and its files are copied: from the address before it begins, to the address every half minute and at its
end. Whoever takes a run over goes on from the copy; a run is a function of its settings, so that even two machines at
the same run would leave the same bits.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from gradsieve.arguments import argument, elsewhere
from gradsieve.errors import GradsieveError, RunFolderError

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)")  # a path writes s3://bucket with one stroke
LOCAL = ("file", "local")
EVERY = 30.0  # seconds between two copies of a run at work: as often as it saves
LAST = ("manifest.json", "result.json")  # they say what the other files are: written after them
OWN = ("lock", "*.part")  # what no other machine needs
SMALL = ("config.json", "metrics.jsonl", "result.json")  # of a run: all that a report needs

Stamp = tuple[int, int]  # when a file was written, and its size


class Remote(NamedTuple):
    """A folder at an address."""

    url: str

    def below(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    def open(self) -> tuple[Any, str]:
        """Its file system, and its path there."""
        from fsspec.core import url_to_fs  # torch brings it along, and needs it as seldom

        try:
            files, path = url_to_fs(self.url)
        except ImportError as error:
            reason = f"a package for this kind of address is missing: {error}"
            raise RunFolderError(
                f"{self.url} cannot be reached: {reason}. Or choose a folder as {argument('out')}."
            ) from error
        except ValueError as error:
            raise RunFolderError(f"{self.url} is at no address that fsspec knows ({error}). {elsewhere()}") from error
        return files, path.rstrip("/")


def is_address(out: Path | str) -> bool:
    """Whether this is no folder, but an address."""
    return ADDRESS.fullmatch(str(out)) is not None


def remote_at(out: Path | str) -> Remote:
    """The folder at an address, which may have gone through a path and lost a stroke."""
    match = ADDRESS.fullmatch(str(out))
    assert match is not None
    protocol, place = match.groups()
    return Remote(f"{protocol}://{'/' if protocol in LOCAL else ''}{place.rstrip('/')}")


@dataclass
class Mirror:
    """A folder of this machine beside one at an address, and the files that are the same in both."""

    remote: Remote
    local: Path
    same: dict[str, Stamp] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)

    def pull(self, wanted: Callable[[PurePosixPath], bool] = lambda name: True) -> None:
        """Copy what is there to this machine."""
        with reached(self.remote):
            files, root = self.remote.open()
            files.invalidate_cache()
            found = files.find(root) if files.exists(root) else []
            for name in (PurePosixPath(path[len(root) :].lstrip("/")) for path in found):
                if wanted(name) and name.name and ".." not in name.parts:
                    target = self.local / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    files.get_file(f"{root}/{name}", str(target))
                    self.same[str(name)] = stamp(target)

    def push(self, wanted: Callable[[PurePosixPath], bool] = lambda name: True) -> None:
        """Copy what has changed here, and remove there what is gone here."""
        with self.busy, reached(self.remote):
            files, root = self.remote.open()
            found = {name: each for name, each in stamps(self.local).items() if wanted(PurePosixPath(name))}
            changed = [name for name, each in found.items() if self.same.get(name) != each]
            # Read before the others are copied: those that they name may be replaced meanwhile.
            last = {name: content(self.local / name) for name in changed if name.endswith(LAST)}
            for name in (name for name in changed if name not in last):
                files.makedirs(f"{root}/{PurePosixPath(name).parent}", exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # of a run at work: a newer one has taken its place
                    files.put_file(str(self.local / name), f"{root}/{name}")
                    self.same[name] = found[name]
            for name, text in last.items():
                if text is not None:
                    files.makedirs(f"{root}/{PurePosixPath(name).parent}", exist_ok=True)
                    files.pipe_file(f"{root}/{name}", text)
                    self.same[name] = found[name]
            for name in [name for name in self.same if name not in found and wanted(PurePosixPath(name))]:
                with contextlib.suppress(FileNotFoundError):
                    files.rm_file(f"{root}/{name}")
                del self.same[name]


@contextlib.contextmanager
def reached(remote: Remote) -> Iterator[None]:
    """One error for all that the libraries of so many services raise."""
    try:
        yield
    except GradsieveError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunFolderError(
            f"{remote.url} cannot be read or written ({reason}). See that it is there and that you may; what is "
            "finished is kept: try again, and it goes on."
        ) from error


def stamps(folder: Path) -> dict[str, Stamp]:
    """The files of a folder by name, and what tells whether one has changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not any(path.match(own) for own in OWN):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    found[path.relative_to(folder).as_posix()] = stamp(path)
    return found


def stamp(path: Path) -> Stamp:
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def content(path: Path) -> bytes | None:
    """The bytes of a file; None where it is gone."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def working_folder(path: Path, remote: Remote | None) -> Iterator[Path]:
    """Where a run works: in its own folder, or in one of this machine that is copied to and from its address."""
    if remote is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gradsieve-") as folder:
        mirror, over = Mirror(remote, Path(folder, "run")), threading.Event()
        mirror.pull()

        def copy_meanwhile() -> None:
            while not over.wait(EVERY):
                with contextlib.suppress(RunFolderError):  # the next time, or at the end, where it is told
                    mirror.push()

        thread = threading.Thread(target=copy_meanwhile, daemon=True)
        thread.start()
        try:
            yield mirror.local
        finally:
            over.set()
            thread.join()
            mirror.push()


@contextlib.contextmanager
def mirrored(out: Path) -> Iterator[tuple[Path, Mirror | None]]:
    """The folder of a grid as a folder of this machine: itself, or a copy of what reports need.

    What the grid writes beside its runs, grid.json and the reports, is copied to the address in the end.
    """
    if not is_address(out):
        yield out, None
        return
    with tempfile.TemporaryDirectory(prefix="gradsieve-") as folder:
        mirror = Mirror(remote_at(out), Path(folder, "grid"))
        mirror.pull(lambda name: is_report(name) or name.name in SMALL)
        try:
            yield mirror.local, mirror
        finally:
            mirror.push(is_report)


def is_report(name: PurePosixPath) -> bool:
    """Whether a file of a grid is not one of a run's."""
    return len(name.parts) == 1


def fetch_run(mirror: Mirror, folder: str) -> None:
    """Copy what a report needs of a run that has ended, wherever it ran."""
    Mirror(mirror.remote.below(folder), mirror.local / folder).pull(lambda name: str(name) in SMALL)
