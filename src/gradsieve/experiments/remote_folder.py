"""The folder of a grid at an address that fsspec knows: s3://bucket/grid, gs://bucket/grid, file:///shared/grid.

Runs need locks and atomic replacement of files, which object stores do not offer. So each run works in a local folder,
and its files are copied: from the address before it begins, to the address every half minute and at its end. Another
machine can take a run over from the copy. Even two machines at the same run would leave the same bits, since those
depend on its settings alone.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

from gradsieve.arguments import argument, elsewhere
from gradsieve.errors import GradsieveError, RunFolderError

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)")  # /+: a Path turns s3://bucket into s3:/bucket
LOCAL = ("file", "local")  # protocols whose addresses keep a leading slash
RENAMING = (*LOCAL, "sftp", "ssh", "hdfs", "smb")  # file systems: object stores write whole files or nothing
EVERY = 30.0  # seconds between two copies of a running run: as often as it saves a state
LAST = ("manifest.json", "result.json")  # copied last, because they refer to the other files
OWN = ("lock", "*.part")  # not copied: no other machine needs them
SMALL = ("config.json", "metrics.jsonl", "result.json")  # the files of a run that a report needs

Stamp = tuple[int, int]  # time of the last change in nanoseconds, and size


class Remote(NamedTuple):
    """A folder at an address."""

    url: str

    def below(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    def open(self) -> tuple[Any, str]:
        """Its file system, and its path there."""
        from fsspec.core import url_to_fs  # installed with torch; imported only where needed

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
    """Whether this is an address instead of a local folder."""
    return ADDRESS.fullmatch(str(out)) is not None


def remote_at(out: Path | str) -> Remote:
    """The folder at an address, whose ``//`` may have been reduced to ``/`` by a Path."""
    match = ADDRESS.fullmatch(str(out))
    assert match is not None
    protocol, place = match.groups()
    return Remote(f"{protocol}://{'/' if protocol in LOCAL else ''}{place.rstrip('/')}")


@dataclass
class Mirror:
    """A local copy of a folder at an address. ``same``: stamps of the local files that are equal in both."""

    remote: Remote
    local: Path
    same: dict[str, Stamp] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)

    def pull(self, wanted: Callable[[PurePosixPath], bool] = lambda name: True) -> None:
        """Copy the wanted files from the address to this machine."""
        with reached(self.remote):
            files, root = self.remote.open()
            files.invalidate_cache()
            found = files.find(root) if files.exists(root) else []
            for name in (PurePosixPath(path[len(root) :].lstrip("/")) for path in found):
                if wanted(name) and name.name and ".." not in name.parts and not is_own(name):
                    target = self.local / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    files.get_file(f"{root}/{name}", str(target))
                    self.same[str(name)] = stamp(target)

    def push(self, wanted: Callable[[PurePosixPath], bool] = lambda name: True) -> None:
        """Copy local changes of the wanted files to the address, deletions included."""
        with self.busy, reached(self.remote):
            files, root = self.remote.open()
            found = {name: each for name, each in stamps(self.local).items() if wanted(PurePosixPath(name))}
            changed = [name for name, each in found.items() if self.same.get(name) != each]
            # Read first: while the others are copied, the run may write a newer manifest, whose files are not copied.
            last = {name: content(self.local / name) for name in changed if name.endswith(LAST)}
            for name in (name for name in changed if name not in last):
                files.makedirs(f"{root}/{PurePosixPath(name).parent}", exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # a running run has deleted it, after writing a newer one
                    source = str(self.local / name)
                    write_whole(files, f"{root}/{name}", lambda path, source=source: files.put_file(source, path))
                    self.same[name] = found[name]
            for name, text in last.items():
                if text is not None:
                    files.makedirs(f"{root}/{PurePosixPath(name).parent}", exist_ok=True)
                    write_whole(files, f"{root}/{name}", lambda path, text=text: files.pipe_file(path, text))
                    self.same[name] = found[name]
            for name in [name for name in self.same if name not in found and wanted(PurePosixPath(name))]:
                with contextlib.suppress(FileNotFoundError):
                    files.rm_file(f"{root}/{name}")
                del self.same[name]


def write_whole(files: Any, path: str, write: Callable[[str], None]) -> None:
    """Let ``write`` write a file at an address, so that half a file never stands there, wherever the process is killed.

    Half a manifest would stand in the way of whoever takes the run over.
    """
    protocols = files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)
    if not set(protocols) & set(RENAMING):
        write(path)
        return
    write(f"{path}.part")
    files.mv(f"{path}.part", path)


@contextlib.contextmanager
def reached(remote: Remote) -> Iterator[None]:
    """One error for all that fsspec's various services raise."""
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
    """The stamps of a folder's files by name, to tell whether one has changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not is_own(path):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    found[path.relative_to(folder).as_posix()] = stamp(path)
    return found


def is_own(path: PurePath) -> bool:
    """Whether a file is of no use elsewhere."""
    return any(path.match(own) for own in OWN)


def stamp(path: Path) -> Stamp:
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def content(path: Path) -> bytes | None:
    """The bytes of a file; None if it is gone."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def working_folder(path: Path, remote: Remote | None) -> Iterator[Path]:
    """The folder that a run works in: its own or, if it is ``remote``, a local one copied from and to its address."""
    if remote is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gradsieve-") as folder:
        mirror, over = Mirror(remote, Path(folder, "run")), threading.Event()
        mirror.pull()

        def copy_meanwhile() -> None:
            while not over.wait(EVERY):
                with contextlib.suppress(RunFolderError):  # the last push, at the end, raises if it fails as well
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
    """The local folder of a grid: ``out`` itself or, if that is an address, a copy of the files that reports need.

    Files beside the runs (grid.json and the reports) are copied to the address at the end.
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
    """Whether a file of a grid lies beside its runs, such as grid.json and the reports."""
    return len(name.parts) == 1


def fetch_run(mirror: Mirror, folder: str) -> None:
    """Copy the files that a report needs of a run that has ended, from the address."""
    Mirror(mirror.remote.below(folder), mirror.local / folder).pull(lambda name: str(name) in SMALL)
