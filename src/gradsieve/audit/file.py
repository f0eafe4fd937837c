"""The audit of a user's file: fit a robust network to it, list its rows, and write it anew without the suspect ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradsieve.audit.judging import judge, mean_scores, read_outputs
from gradsieve.audit.repair import repaired, replaced
from gradsieve.audit.result import Audit
from gradsieve.audit.writing import new_file
from gradsieve.data import Rows, Task
from gradsieve.data.table import Table, read_csv
from gradsieve.errors import InputError
from gradsieve.estimators.fitting import DROP_RATE, make_trainer, mean_outputs
from gradsieve.estimators.learnt_rate import LEARN
from gradsieve.estimators.rows import canonical_order
from gradsieve.files.fit import Prepared, plan_fit, prepare
from gradsieve.methods import DEFAULT_METHOD
from gradsieve.registry import unknown
from gradsieve.tables.frame import as_names
from gradsieve.training.repeatable import reproducible

EPOCHS = 50  # fewer than for a model: a network that is trained for long learns wrong targets by heart


def audit_file(
    data: str | Path,
    targets: str | Sequence[str] = (),
    *,
    task: Task | None = None,
    ignore: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    method: str = DEFAULT_METHOD,
    method_options: Mapping[str, Any] | None = None,
    drop_rate: float | str = LEARN,
    epochs: int = EPOCHS,
    seed: int = 0,
    device: str = "auto",
    note: Callable[[str], None] = lambda text: None,
    tell: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Audit:
    """Fit a network as ``gradsieve fit`` does, and audit the rows that have a target. Nothing is written.

    ``drop_rate="learn"`` drops as many rows as seem wrong on the way; "auto" lets held-out rows choose the share.
    """
    data, targets, ignore, categorical = Path(data), *map(as_names, (targets, ignore, categorical))
    prepared = prepare(data, targets, task, ignore, categorical, note)
    learns = drop_rate == LEARN
    options = {"method": method, "method_options": dict(method_options or {}), "learns_rate": learns}
    options |= {"epochs": epochs, "seed": seed, "device": device}
    plan, _, make_network = plan_fit(prepared, DROP_RATE if learns else drop_rate, note, **options)
    learnt = prepared.targets
    scaled = learnt.scaled(prepared.given, plan.used_rate > 0)
    rows = Rows(torch.from_numpy(prepared.inputs), torch.from_numpy(scaled))
    trainer = make_trainer(plan, rows, canonical_order(prepared.inputs, scaled), make_network)
    with reproducible(plan.seed, trainer.feed.device):
        for record in trainer.epochs():
            tell(record)
    ledger, networks = trainer.ledger.cpu(), [network.cpu().eval() for network in trainer.networks]
    outputs = mean_outputs(networks, prepared.inputs, plan.task)
    is_classes = plan.task == "classification"
    given = scaled if is_classes else prepared.given.astype(np.float64)
    answers = read_outputs(plan.task, given, outputs if is_classes else learnt.scale.invert(outputs))
    return judge(
        learnt.task,
        tuple(learnt.classes if is_classes else learnt.names),
        given,
        answers,
        mean_scores(ledger),
        seen=ledger.judged.numpy(),
        dropped=ledger.dropped.numpy(),
        method=method,
        run=data.name,
        most=1.0 if trainer.learnt_rate is None else trainer.learnt_rate,
        **row_names(prepared),
    )


def row_names(prepared: Prepared) -> dict[str, Any]:
    """Rows of tables by their number from 1, images by their number and their file."""
    if prepared.side:
        numbers = np.arange(1, len(prepared.names) + 1)
        return {"row": numbers, "files": np.array(prepared.names, dtype=object)}
    return {"row": np.array(prepared.names, dtype=np.int64)}


def clean_file(
    audit: Audit, source: str | Path, out: str | Path, targets: str | Sequence[str], *, repair: bool = False
) -> int:
    """Write a new CSV without the flagged rows, or with their targets repaired; how many rows that concerns.

    Every other line is the source's own, to the byte, and so are rows that were not judged because they have no target.
    """
    source, out, targets = Path(source), Path(out), as_names(targets)
    if source.suffix.lower() != ".csv":
        raise InputError(f"{source} is not a CSV file. Take audit.clean(X, y) for arrays.")
    table = read_csv(source, least_rows=1, least_columns=1)
    for name in targets:
        if name not in table.header:
            raise InputError(unknown("target", name, dict.fromkeys(table.header)))
    places = audit.row - 1
    if len(places) and places.max() >= len(table.rows):
        raise InputError(
            f"{source} has {len(table.rows)} rows, but the audit knows a row {audit.row.max()}: give its own file."
        )
    numbers = [table.header.index(name) for name in targets]
    changed = repaired_rows(audit, table, numbers) if repair else dict.fromkeys(places[audit.flagged].tolist())
    with new_file(out, "w") as file:
        file.write(changed_text(table, changed))
    return int(audit.flagged.sum())


def repaired_rows(audit: Audit, table: Table, columns: Sequence[int]) -> dict[int, list[str]]:
    """The rows, by their place, that have another target than before."""
    places = (audit.row - 1).tolist()
    cells = np.array([[table.rows[place][column] for column in columns] for place in places], dtype=object)
    rows = {}
    for place, old, new in zip(places, cells.tolist(), new_cells(audit, cells).tolist(), strict=True):
        if new != old:
            own = dict(zip(columns, new, strict=True))
            rows[place] = [own.get(column, cell) for column, cell in enumerate(table.rows[place])]
    return rows


def changed_text(table: Table, changed: Mapping[int, list[str] | None]) -> str:
    """The file, some of its rows, by their place, as others or (None) left out; its line ends, and quotes, stay."""
    with open(table.path, encoding="utf-8", newline="") as file:  # not utf-8-sig: the mark at its beginning stays
        lines = list(file)
    ends = [table.header_line, *table.lines]
    pieces = ["".join(lines[: table.header_line])]
    for place, (start, end) in enumerate(pairwise(ends)):
        text = "".join(lines[start:end])
        row = text.lstrip("\r\n")  # empty lines before it are not the row's
        pieces += [text.removesuffix(row), csv_row(changed[place], line_end(row)) if place in changed else row]
    pieces.append("".join(lines[ends[-1] :]))
    text = "".join(pieces)
    return text if line_end(lines[-1]) else text.removesuffix(line_end(text))


def csv_row(row: list[str] | None, end: str) -> str:
    if row is None:
        return ""
    file = io.StringIO()
    csv.writer(file, lineterminator=end).writerow(row)
    return file.getvalue()


def line_end(text: str) -> str:
    """How a line ends, which the last one of a file need not."""
    return next((end for end in ("\r\n", "\n", "\r") if text.endswith(end)), "")


def new_cells(audit: Audit, cells: Any) -> Any:
    """The cells of the targets (N, targets), those that are off in flagged rows as the network would have them."""
    if audit.task == "classification":
        return repaired(audit, cells[:, 0])[:, None]
    found, suggested = cells.copy(), audit.suggested[audit.flagged]
    texts = np.array([[repr(float(value)) for value in row] for row in suggested], dtype=object)
    found[audit.flagged] = np.where(replaced(audit), texts.reshape(suggested.shape), cells[audit.flagged])
    return found
