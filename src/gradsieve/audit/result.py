"""An audit: what one robust training run says about every row that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.audit import columns, repair, terminal, writing
from gradsieve.data import Task
from gradsieve.data.validate import check_count
from gradsieve.notebook import PAGES

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True, eq=False)
class Audit:
    """How suspect each row is, in the order of the source, and what its target should perhaps have been."""

    task: Task
    names: tuple[str, ...]  # of the classes, or of the outputs
    row: NDArray[np.int64]  # (N,) the row of the source: files count from 1, arrays and data sets from 0
    suspicion: NDArray[np.float64]  # (N,) in [0, 1]; flagged rows have 0.5 and more
    rank: NDArray[np.integer[Any]]  # (N,) 1 is the most suspect
    flagged: NDArray[np.bool_]  # (N,)
    given: NDArray[Any]  # (N,) class numbers, or (N, q) targets
    suggested: NDArray[Any]  # likewise, by the robust network
    confidence: NDArray[np.floating[Any]] | None  # (N,) probability of the suggested class; None for regression
    seen: NDArray[np.integer[Any]]  # (N,) how often the row was judged
    dropped: NDArray[np.integer[Any]]  # (N,) and how often it was dropped
    mean_score: NDArray[np.floating[Any]]  # (N,) NaN where the row was never scored
    off: NDArray[np.bool_] | None  # (N, q) which outputs are off; None for classes
    kind: NDArray[np.object_] | None  # (N,) "sign flipped", "swapped", "scaled", "random", ""; None for classes
    rate: float  # the share of rows that is flagged
    rate_source: str  # why that share, in words
    method: str
    run: str  # the name of the run or file
    files: NDArray[np.object_] | None = None  # (N,) the rows' own files, for images
    targets: tuple[str, ...] = ()  # the columns of its table that hold the targets
    ids: NDArray[np.object_] | None = None  # (N,) the names of the rows, from a column of their table
    gaps: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)  # (N,) where an input is missing, by its name
    warnings: tuple[str, ...] = ()  # sentences: why the flags may be unreliable

    @property
    def has_gap(self) -> NDArray[np.bool_]:
        """(N,) whether an input of the row is missing."""
        return np.logical_or.reduce([np.zeros(len(self), dtype=bool), *self.gaps.values()])

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        flagged = int(self.flagged.sum())
        return f"<Audit of {self.run}: {len(self)} rows, {flagged} flagged ({self.rate_source})>"

    def table(self) -> dict[str, NDArray[Any]]:
        """Columns by name, in the order of the CSV; a row for each row of the source."""
        return columns.table(self, np.arange(len(self)))

    def most_suspect(self, rows: int = 20) -> dict[str, NDArray[Any]]:
        """The same columns for the most suspect rows, the worst first."""
        check_count("rows", rows, 0)
        return columns.table(self, np.argsort(self.rank, kind="stable")[:rows])

    def by_class(self) -> list[dict[str, Any]]:
        """For each class its rows, the share of them that was kept, those flagged, and what is suggested for these."""
        return columns.by_class(self)

    def summary(self) -> dict[str, Any]:
        """What audit.json holds."""
        return columns.summary(self)

    def clean(self, *arrays: ArrayLike) -> Any:
        """Each of the arrays without the flagged rows; one array where one is given, else a tuple."""
        return repair.clean(self, *arrays)

    def repaired(self, y: ArrayLike) -> Any:
        """A copy of the targets with those of flagged rows repaired, in the words or units of ``y``: the sign turned,
        the power of ten divided out, or what is suggested, unless the row lacks an input."""
        return repair.repaired(self, y)

    def to_csv(self, path: str | Path) -> None:
        """One line for each row of the source; no cell begins a formula. Never written over a file."""
        writing.write_csv(self, Path(path))

    def to_parquet(self, path: str | Path) -> None:
        """The same columns; needs pyarrow."""
        writing.write_parquet(self, Path(path))

    def to_json(self, path: str | Path) -> None:
        """The summary."""
        writing.write_summary(self, Path(path))

    def _repr_html_(self) -> str:
        return PAGES["audit"](self)

    def __rich__(self) -> Group:
        return terminal.audit_table(self)
