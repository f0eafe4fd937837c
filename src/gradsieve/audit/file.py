"""The audit of a user's file: fit a robust network to it, and judge its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.arguments import argument
from gradsieve.audit.judging import judge, mean_scores, read_outputs
from gradsieve.audit.result import Audit
from gradsieve.data import Task
from gradsieve.errors import InputError
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.learnt_rate import LEARN
from gradsieve.estimators.plan import DROP_RATE
from gradsieve.files.fit import fit_prepared
from gradsieve.files.prepare import Prepared, prepare
from gradsieve.methods import DEFAULT_METHOD
from gradsieve.tables.frame import as_names
from gradsieve.tables.reading import read_frame
from gradsieve.tables.shards import is_shards

EPOCHS = 50  # fewer than a fit has: a network that is trained for long memorizes wrong targets


def audit_file(
    data: str | Path,
    targets: str | Sequence[str] = (),
    *,
    task: Task | None = None,
    ignore: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    id_column: str | None = None,
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

    ``id_column`` holds names of the rows for readers of the audit; it is not used as an input. ``drop_rate="learn"``
    drops as many rows as seem wrong during training; "auto" lets held-out rows choose the share.
    """
    data, targets, ignore, categorical = Path(data), *map(as_names, (targets, ignore, categorical))
    if id_column is not None and id_column in targets:
        raise InputError(f"{argument('id_column')} names a target: {id_column}. Give a column of names.")
    ids = None if id_column is None else read_ids(data, id_column)
    prepared = prepare(data, targets, task, [*ignore, *([] if id_column is None else [id_column])], categorical, note)
    learns = drop_rate == LEARN
    options = {"method": method, "method_options": dict(method_options or {}), "learns_rate": learns}
    options |= {"epochs": epochs, "seed": seed, "device": device}
    plan, _, fitted = fit_prepared(prepared, DROP_RATE if learns else drop_rate, note, tell, **options)
    learnt, is_classes = prepared.targets, plan.task == "classification"
    outputs = mean_outputs(fitted.networks, prepared.inputs, plan.task, plan.device)
    given = prepared.scaled(drops=True) if is_classes else prepared.given.astype(np.float64)
    answers = read_outputs(plan.task, given, outputs if is_classes else learnt.scale.invert(outputs))
    return judge(
        learnt.task,
        tuple(learnt.classes if is_classes else learnt.names),
        given,
        answers,
        mean_scores(fitted.ledger),
        seen=fitted.ledger.judged.numpy(),
        dropped=fitted.ledger.dropped.numpy(),
        method=method,
        run=Path(os.path.abspath(data)).name,  # also for a path such as "."; a link keeps its own name
        most=fitted.drop_rate if learns else 1.0,
        gaps=prepared.gaps,
        ids=None if ids is None else ids[np.array(prepared.names) - 1],
        **row_names(prepared),
    )


def read_ids(data: Path, name: str) -> NDArray[np.object_]:
    """(N,) a column of a table as it is written, which names its rows."""
    if data.is_dir() and not is_shards(data):
        raise InputError(
            f"{data} is a folder of images, which are named by their files. Leave the column of names out."
        )
    frame = read_frame(data, as_text={name})
    return frame.columns[frame.find(argument("id_column"), [name])[0]].astype(object)


def row_names(prepared: Prepared) -> dict[str, Any]:
    """Where the rows are in the source: numbers from 1, with a table's target columns or the images' files."""
    if prepared.side:
        numbers = np.arange(1, len(prepared.names) + 1)
        return {"row": numbers, "files": np.array(prepared.names, dtype=object)}
    return {"row": np.array(prepared.names, dtype=np.int64), "targets": tuple(prepared.targets.names)}
