"""The folder of a run over several ranks: the first rank has it, and all go on or stop together.

No other rank needs to see the disk. What is read travels to them, and an error is raised by the first rank, once.
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
    """A `RunFolder` as every rank may use it."""

    folder: RunFolder | None  # of the first rank

    def first(self, action: Callable[[RunFolder], T]) -> T | None:
        """What the first rank does with the folder, or an error for all."""
        return ranks.agreed(lambda: None if self.folder is None else action(self.folder))

    def told(self, action: Callable[[RunFolder], T]) -> T:
        """The same, and its answer, plain values, for all."""
        return ranks.from_first(self.first(action))  # pyright: ignore[reportReturnType]

    def tensors(self, action: Callable[[RunFolder], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The same for tensors."""
        found = self.first(action) or {}
        return ranks.tensors_from_first(found, ranks.from_first(kinds_of(found)))

    @property
    def path(self) -> Path | None:
        """Where the first rank has it."""
        return None if self.folder is None else self.folder.path

    @property
    def finished(self) -> bool:
        return self.told(lambda folder: folder.finished)

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
        return self.told(lambda folder: folder.finish(result, weights, ledger))

    def result(self) -> dict[str, Any]:
        return self.told(lambda folder: folder.result())

    def metrics(self) -> list[dict[str, Any]]:
        return self.told(lambda folder: folder.metrics())

    def weights(self) -> dict[str, Tensor]:
        return self.tensors(lambda folder: folder.weights())

    def ledger(self) -> dict[str, Tensor]:
        return self.tensors(lambda folder: folder.ledger())


def open_shared(path: Path, run: Run, resume: bool) -> RunFolder | SharedFolder:
    """The folder for a run, of one process or of several ranks."""
    if ranks.world_size() == 1:
        return open_folder(path, run, resume)
    return SharedFolder(ranks.agreed(lambda: open_folder(path, run, resume) if ranks.is_first() else None))
