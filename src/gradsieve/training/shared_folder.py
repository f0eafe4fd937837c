"""The folder of a run over several ranks: only the first rank reads and writes it.

The others need no access to the disk: they are sent what is read. An error of the first rank stops all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from gradsieve import ranks
from gradsieve.ranks.collectives import kinds_of
from gradsieve.training.folder import RunFolder, open_folder
from gradsieve.training.run import Run

T = TypeVar("T")


@dataclass
class SharedFolder:
    """A `RunFolder` for all ranks; every method must be called on all of them."""

    folder: RunFolder | None  # None on all ranks but the first

    def first(self, action: Callable[[RunFolder], T]) -> T | None:
        """Let the first rank do something with the folder. Its answer, None on other ranks; an error is for all."""
        return ranks.agreed(lambda: None if self.folder is None else action(self.folder))

    def answer(self, action: Callable[[RunFolder], T]) -> T:
        """The same, but all ranks get the answer, which must be plain values."""
        return ranks.from_first(self.first(action))  # pyright: ignore[reportReturnType]

    def tensors(self, action: Callable[[RunFolder], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The same for an answer of tensors."""
        found = self.first(action) or {}
        return ranks.tensors_from_first(found, ranks.from_first(kinds_of(found)))

    @property
    def path(self) -> Path | None:
        """The folder's path, None on all ranks but the first."""
        return None if self.folder is None else self.folder.path

    @property
    def finished(self) -> bool:
        return self.answer(lambda folder: folder.finished)

    def create(self) -> None:
        self.first(lambda folder: folder.create())

    def release(self) -> None:
        if self.folder is not None:
            self.folder.release()

    def write_metrics(self, history: list[dict[str, Any]]) -> None:
        self.first(lambda folder: folder.write_metrics(history))

    def save_state(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.first(lambda folder: folder.save_state(tensors, meta))

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        found = self.first(lambda folder: folder.load_state())
        meta = ranks.from_first(None if found is None else found[1])
        if meta is None:
            return None
        return self.tensors(lambda _: found[0] if found else {}), meta

    def finish(self, result: dict[str, Any], weights: dict[str, Tensor], ledger: dict[str, Tensor]) -> dict[str, Any]:
        return self.answer(lambda folder: folder.finish(result, weights, ledger))

    def result(self) -> dict[str, Any]:
        return self.answer(lambda folder: folder.result())

    def metrics(self) -> list[dict[str, Any]]:
        return self.answer(lambda folder: folder.metrics())

    def weights(self) -> dict[str, Tensor]:
        return self.tensors(lambda folder: folder.weights())

    def ledger(self) -> dict[str, Tensor]:
        return self.tensors(lambda folder: folder.ledger())


def open_shared(path: Path, run: Run, resume: bool) -> RunFolder | SharedFolder:
    """The folder for a run in one process or over several ranks."""
    if ranks.world_size() == 1:
        return open_folder(path, run, resume)
    return SharedFolder(ranks.agreed(lambda: open_folder(path, run, resume) if ranks.is_first() else None))
