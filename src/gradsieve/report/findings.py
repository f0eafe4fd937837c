"""What a report shows about suspect rows: read from an audit, from an audit's folder, or from a run's ledger."""

from __future__ import annotations

import csv
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.audit.result import Audit
from gradsieve.audit.run import audit_run
from gradsieve.data import Task
from gradsieve.errors import CheckpointError
from gradsieve.report.source_rows import SourceTargets
from gradsieve.tables.cells import unquoted
from gradsieve.training.files import read_json
from gradsieve.training.ledger import Ledger

WORDS = ("file", "id", "kind", "off", "gaps")  # columns of audit.csv that hold text
CLASSES = ("given", "suggested")  # columns that hold text too, if the task is classification
CLASS_KEYS = {"name", "rows", "kept_share", "flagged", "suggested"}  # needed of each class in audit.json
NEEDED = ("row", "suspicion", "flagged", "rank")  # columns that audit.csv must have
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default would refuse long cells


@dataclass(frozen=True)
class Findings:
    """The most suspect rows with all their columns, and the measure that ranks all rows."""

    summary: Mapping[str, Any]  # the content of audit.json
    columns: Mapping[str, Sequence[Any]]  # of the most suspect rows, the worst first, such as "row"
    measure: str  # the name of the measure
    values: NDArray[np.float64]  # (N,) the measure of all rows
    flagged: NDArray[np.bool_]  # (N,)
    file: Path | None = None  # the audit.csv with all rows


def audit_findings(audit: Audit, rows: int) -> Findings:
    """The findings of an audit in memory."""
    columns = {name: values.tolist() for name, values in audit.most_suspect(rows).items()}
    return Findings(audit.summary(), columns, "suspicion", audit.suspicion, audit.flagged)


def run_findings(folder: Path, rows: int) -> Findings:
    """The findings of a run's folder, which is audited now."""
    return audit_findings(audit_run(folder), rows)


def folder_findings(folder: Path, rows: int) -> Findings:
    """The findings of a folder that ``gradsieve audit`` wrote; of most rows only suspicion and flag are kept."""
    path = folder / "audit.csv"
    summary = read_json(folder / "audit.json")
    suspicion, flagged, found = array("d"), array("b"), []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            places = {name: header.index(name) for name in NEEDED}
            for line in lines:
                suspicion.append(float(line[places["suspicion"]]))
                flagged.append(int(line[places["flagged"]]))
                rank = int(line[places["rank"]])
                if rank <= rows:
                    found.append((rank, line))
        if not is_summary(summary) or any(len(line) != len(header) for _, line in found):
            raise ValueError("a line or the summary is incomplete")
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise damaged(path, error) from error
    found.sort(key=lambda each: each[0])
    columns = {
        unquoted(name): cells(name, [line[place] for _, line in found], summary.get("task"))
        for place, name in enumerate(header)
    }
    return Findings(summary, columns, "suspicion", np.array(suspicion), np.array(flagged, dtype=bool), path)


def given_targets(path: Path, task: Task, targets: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The row numbers (N,) in an audit.csv, and the given targets of these rows, (N, ``targets``)."""
    read, kind = (unquoted, object) if task == "classification" else (float, np.float64)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            row, first = header.index("row"), [name.partition(" ")[0] for name in header].index("given")
            found = [(int(line[row]), *map(read, line[first : first + targets])) for line in lines]
        rows, *given = zip(*found, strict=True)
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise damaged(path, error) from error
    return np.array(rows), np.stack([np.array(column, dtype=kind) for column in given], axis=1)


def damaged(path: Path, error: Exception) -> CheckpointError:
    """The error for an audit.csv that cannot be read."""
    return CheckpointError(f"{path} is damaged or not of an audit ({error}). Audit again into another folder.")


def is_summary(summary: Any) -> bool:
    """Whether the content of audit.json has the structure that a report relies on."""
    if not isinstance(summary, dict) or not isinstance(summary.get("names", []), list):
        return False
    texts = [summary.get(name) or [] for name in ("warnings", "target")]
    if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in texts):
        return False
    classes, counts = summary.get("classes") or [], [summary.get(name) or {} for name in ("kinds", "off")]
    return all(isinstance(each, dict) for each in counts) and all(
        isinstance(each, dict) and each.keys() >= CLASS_KEYS and isinstance(each["suggested"], dict) for each in classes
    )


def cells(name: str, texts: Sequence[str], task: Any) -> list[Any]:
    """The cells of a column of audit.csv with their types: a class called 7 stays text."""
    if name == "flagged":
        return [text == "1" for text in texts]
    if name in WORDS or (task == "classification" and name in CLASSES):
        return [unquoted(text) for text in texts]
    return [number_or_text(text) for text in texts]


def number_or_text(text: str) -> Any:
    """A cell as a number if it reads as one, else the text."""
    try:
        return int(text) if text.strip().removeprefix("-").isdecimal() else float(text)
    except ValueError:
        return text


def ledger_findings(
    settings: Mapping[str, Any], ledger: Ledger, source: SourceTargets | None, rows: int
) -> Findings | None:
    """The findings of a run without an audit: the rows by their mean score. None if the method has no scores."""
    scored, judged, dropped = (column.numpy() for column in (ledger.scored, ledger.judged, ledger.dropped))
    if not scored.any():
        return None
    scores = ledger.mean_score.double().numpy()
    order = np.argsort(-scores, kind="stable")[: min(rows, int((scored > 0).sum()))]  # unscored rows: NaN, sorted last
    flagged = is_dropped(ledger)
    columns: dict[str, list[Any]] = {"row": order.tolist(), "mean_score": scores[order].tolist()}
    if source is not None and source.task == "classification":
        columns["given"] = [source.names[number] for number in source.given[order]]
    elif source is not None:
        names = ["given"] if len(source.names) == 1 else [f"given {name}" for name in source.names]
        columns |= {name: source.given[order, place].tolist() for place, name in enumerate(names)}
    columns |= {"seen": judged[order].tolist(), "dropped": dropped[order].tolist()}
    summary = {
        "task": source.task if source is not None else None,
        "names": list(source.names) if source is not None else [],
        "rows": len(scores),
        "flagged": int(flagged.sum()),
        "method": settings.get("method"),
    }
    return Findings(summary, columns, "mean score", scores, flagged)


def is_dropped(ledger: Ledger) -> NDArray[np.bool_]:
    """The rows that were dropped more often than kept."""
    return (ledger.drop_share > 0.5).numpy()
