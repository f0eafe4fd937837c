"""Files that are written atomically, and whose checksums show when they were altered."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gradsieve.arguments import again, elsewhere
from gradsieve.errors import CheckpointError, RunFolderError

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, two processes in one folder are not noticed
    fcntl = None


def take(folder: Path, lock: Path) -> IO[str]:
    """Make a folder this process's own as long as ``lock``, a file in it, stays open."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "a")  # noqa: SIM115
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunFolderError(f"{folder} is in use by another process. {elsewhere('Wait for it')}") from None
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be made or written to ({error.strerror}). {elsewhere()}") from error
    return file


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write all of ``content``, given whole or in pieces, or nothing: after a failure the old file is untouched."""
    try:
        with whole_file(path) as file:
            for piece in [content] if isinstance(content, bytes) else content:
                file.write(piece)
    except OSError as error:
        raise RunFolderError(
            f"{path} could not be written ({error.strerror or error}). What was there before is untouched: "
            f"make room or choose another place, then {again()}."
        ) from error


@contextlib.contextmanager
def whole_file(path: Path, mode: Literal["wb", "w"] = "wb") -> Iterator[IO[Any]]:
    """A file that replaces the one at ``path`` only when all of it is on the disk."""
    part = path.with_name(path.name + ".part")
    is_text = mode == "w"
    try:
        with open(part, mode, newline="" if is_text else None, encoding="utf-8" if is_text else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def filled(folder: Path, *names: str) -> Iterator[list[Path]]:
    """Make a folder for the files of these names, which the caller writes.

    If not all can be written, those that are new go again, and so does a new folder: the same command can be repeated.
    """
    paths = [folder / name for name in names]
    is_new, new_files = not folder.exists(), [path for path in paths if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be made ({error.strerror}). {elsewhere()}") from error
    try:
        yield paths
    except BaseException:
        with contextlib.suppress(OSError):
            for path in new_files:
                path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
        raise


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON. NaN, which JSON does not have, becomes null."""
    write_whole(path, (json.dumps(finite(value), indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, way_out: str = "") -> Any:
    """The value of a JSON file, or one error that names it, followed by the caller's ``way_out``."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or cannot be read ({error}). {way_out}".rstrip()) from error


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of its formatting in a file."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def finite(value: Any) -> Any:
    """``value`` with NaN and infinities, which JSON cannot hold, replaced by None."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Tensors as safetensors, a format without code; returns the SHA-256, which the format itself lacks."""
    digest = hashlib.sha256()

    def pieces() -> Iterable[bytes | memoryview]:
        for piece in tensor_pieces({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}):
            digest.update(piece)
            yield piece

    write_whole(path, pieces())
    return digest.hexdigest()


def tensor_pieces(tensors: dict[str, Tensor]) -> Iterable[bytes | memoryview]:
    """The bytes that safetensors' ``save`` returns, in pieces without a copy: a ledger may fill half of the memory."""
    # The header is that of empty tensors, with the real shapes and offsets put in.
    empty = save({name: torch.empty(0, dtype=tensor.dtype) for name, tensor in tensors.items()})
    size = int.from_bytes(empty[:8], "little")
    header, end = json.loads(empty[8 : 8 + size]), 0
    for name, entry in header.items():
        start, end = end, end + tensors[name].nbytes
        entry |= {"shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in header:
        yield tensors[name].reshape(-1).view(torch.uint8).numpy().data


def read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of a file with this checksum, or one error if it was altered."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}).") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one that was recorded.")
    try:
        return load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a safetensors file ({error}).") from error
