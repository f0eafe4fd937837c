"""Fit a network to a user's file, and predict for another file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradsieve import ranks
from gradsieve.arguments import argument, elsewhere
from gradsieve.choosing import AUTO, largest_rate
from gradsieve.choosing.pick import RatePick
from gradsieve.choosing.picture import summary as pick_summary
from gradsieve.data import Task
from gradsieve.data.validate import check_count, check_seconds
from gradsieve.errors import InputError, RunFolderError
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.auto_rate import choose_rate
from gradsieve.estimators.fitting import Fits, Fitted
from gradsieve.estimators.plan import DROP_RATE, Plan
from gradsieve.estimators.scaling import far_targets
from gradsieve.files.images import find_images, read_images
from gradsieve.files.prepare import HIDDEN, Prepared, check_task, prepare
from gradsieve.methods import DEFAULT_METHOD
from gradsieve.registry import unknown
from gradsieve.streams.encoder import BadRows
from gradsieve.streams.fit import fit_stream
from gradsieve.tables.cells import csv_lines, to_csv
from gradsieve.tables.frame import Frame, as_names
from gradsieve.tables.model_folder import Design, Model, about, check_new, load_model, returned, save_model
from gradsieve.tables.reading import read_frame
from gradsieve.tables.shard_frames import frames
from gradsieve.tables.shards import is_shards, open_shards
from gradsieve.tables.targets import row_header
from gradsieve.training.files import write_whole
from gradsieve.training.repeatable import refuse_inference_mode

MOST_IN_MEMORY = 10**9  # bytes of a table; larger ones are streamed


def fit_file(
    data: str | Path,
    targets: str | Sequence[str],
    out: str | Path,
    *,
    task: Task | None = None,
    ignore: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    method: str = DEFAULT_METHOD,
    method_options: Mapping[str, Any] | None = None,
    drop_rate: float | str = DROP_RATE,
    epochs: int = 100,
    batch_size: int | Literal["auto"] = "auto",
    seed: int = 0,
    device: str = "auto",
    stream: bool | None = None,
    bad_rows: BadRows = "stop",
    resume: bool = False,
    save_every: float = 60.0,
    note: Callable[[str], None] = lambda text: None,
    tell: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Fit a network to a CSV, Parquet, Arrow or NPZ file, or to a folder of shards or class folders.

    ``drop_rate="auto"`` lets held-out rows choose the share to drop (``gradsieve.choosing.rates``).
    The folder ``out`` will hold the model (``gradsieve.tables.model_folder``). Returns a summary, which model.json has
    as well: the ``task``, how many ``rows`` were fitted and ``dropped``, the last ``loss``, ``seconds``, and with
    "auto" the ``pick``. The file is checked before anything is fitted or written.

    Parquet and Arrow files that would take more than 1 GB are streamed, unless ``stream`` says otherwise: rows are
    checked as they are read, and bad ones stop the fit or are left out, by ``bad_rows``; a state is saved every
    ``save_every`` seconds, and ``resume`` goes on from it to the same bits.
    """
    began = time.monotonic()
    check_alone()
    refuse_inference_mode()
    check_task(task)
    check_count(argument("seed"), seed, 0)
    check_seconds(argument("save_every"), save_every)
    data, out, targets, ignore, categorical = Path(data), Path(out), *map(as_names, (targets, ignore, categorical))
    options = {"method": method, "method_options": dict(method_options or {}), "epochs": epochs}
    options |= {"batch_size": batch_size, "seed": seed, "device": device}
    shards = open_shards(data) if is_shards(data) and stream is not False else None
    if shards is not None and (stream or shards.bytes_in_memory > MOST_IN_MEMORY):
        ways: dict[str, Any] = {"bad_rows": bad_rows, "resume": resume, "save_every": save_every}
        columns: dict[str, Any] = {"task": task, "ignore": ignore, "categorical": categorical}
        calls: dict[str, Any] = {"drop_rate": drop_rate, "hidden": HIDDEN, "note": note, "tell": tell}
        return fit_stream(shards, targets, out, **columns, **ways, **calls, **options)
    check_not_streamed(data, bool(stream), bad_rows, resume)
    check_new(out)
    prepared = prepare(data, targets, task, ignore, categorical, note)
    plan, pick, fitted = fit_prepared(prepared, drop_rate, note, tell, **options)
    if forsaken := fitted.forsaken(prepared.targets.classes):
        warnings.warn(forsaken, UserWarning, stacklevel=2)
    if plan.task == "regression" and (told := far_targets(prepared.given, prepared.targets.scale, fitted.drop_rate)):
        warnings.warn(told, UserWarning, stacklevel=2)
    summary = {
        "data": str(data),
        "task": plan.task,
        "target": prepared.targets.names,
        "rows": len(prepared.given),
        "inputs": len(prepared.encoding.columns) or list(prepared.inputs.shape[1:]),
        "dropped": int((~fitted.kept).sum()),
        "loss": fitted.history[-1]["loss"],
        "seconds": time.monotonic() - began,
    }
    if pick is not None:
        summary["pick"] = pick.to_json()
    save_fit(out, prepared, prepared.design(), fitted, about(summary, plan))
    return returned(summary, plan, out)


def check_alone() -> None:
    """Refuse a process group: its processes would sum their gradients and write into one folder."""
    if ranks.world_size() > 1:
        raise InputError(
            f"fit_file works in one process, but {ranks.world_size()} are in a group here (torch.distributed). Call it "
            "before the group is made, or train in it with RobustLoss."
        )


def check_not_streamed(data: Path, stream: bool, bad_rows: str, resume: bool) -> None:
    """Refuse options of streamed tables for a table in memory."""
    if stream:
        raise InputError(
            f"{data} cannot be streamed: {argument('stream', True)} reads Parquet and Arrow files, or a folder of them."
        )
    option = argument("resume", True) if resume else argument("bad_rows", bad_rows) if bad_rows != "stop" else ""
    if option:
        way = (
            f"Add {argument('stream', True)}."
            if is_shards(data)
            else "Leave it out, or write the table as Parquet or Arrow files."
        )
        raise InputError(f"{option} is for tables that are streamed, but {data} is read into memory. {way}")


def fit_prepared(
    prepared: Prepared,
    drop_rate: float | str,
    note: Callable[[str], None],
    tell: Callable[[dict[str, Any]], None],
    **options: Any,  # fields of the plan
) -> tuple[Plan, RatePick | None, Fitted]:
    """Fit a network: the plan, the pick of its drop rate if that is "auto", and the result."""
    learnt, make_network, pick = prepared.targets, prepared.design().build, None
    plan = Plan(task=learnt.task, outputs=learnt.outputs, drop_rate=largest_rate(drop_rate), **options)
    fits = Fits(plan, prepared.inputs, prepared.scaled, make_network, tell=tell)
    with ranks.alone():  # an audit in a process group is of each process's own
        if drop_rate == AUTO:
            pick = choose_rate(fits)
            note(pick.warning or pick_summary(pick))
            plan = replace(plan, drop_rate=pick.rate)
        return plan, pick, fits.at(plan.drop_rate)


def save_fit(
    folder: Path, prepared: Prepared, design: Design, fitted: Fitted, history: dict[str, Any], is_ours: bool = False
) -> None:
    """Write the folder of a fitted model."""
    model = Model(prepared.targets, prepared.encoding, prepared.side, design, fitted.networks)
    save_model(folder, model, history, rows_csv(prepared, fitted), is_ours)


def rows_csv(prepared: Prepared, fitted: Fitted) -> str:
    """Every row with its score, the most suspicious first."""
    scores, kept = fitted.row_scores, fitted.kept
    predicted = prepared.targets.readable(mean_outputs(fitted.networks, prepared.inputs, prepared.targets.task))
    rows = (
        [prepared.names[row], float(scores[row]), int(kept[row]), *prepared.given[row], *predicted[row]]
        for row in np.argsort(-scores, kind="stable")
    )
    return to_csv(row_header(prepared.targets), rows)


def predict_file(folder: str | Path, data: str | Path, out: str | Path | None = None) -> str:
    """Predictions for the rows of a file, as CSV; also written to ``out`` if that is given."""
    if out is None:
        return "".join(predictions(Path(folder), Path(data)))
    write_predictions(Path(folder), Path(data), Path(out))
    return Path(out).read_bytes().decode()  # UTF-8 whatever the locale, with unchanged line ends


def write_predictions(folder: Path, data: Path, out: Path) -> None:
    """Write predictions into a new file, which is complete or not there."""
    if out.exists():
        raise RunFolderError(f"{out} is there already, and nothing is written over. {elsewhere(what='file')}")
    pieces = predictions(folder, data)
    header = next(pieces)  # this checks the model and the file's columns
    if not out.parent.is_dir():
        raise RunFolderError(f"{out.parent} is not a folder. {elsewhere('Make it first', what='file')}")
    write_whole(out, (piece.encode() for piece in chain([header], pieces)))


def predictions(folder: Path, data: Path) -> Iterator[str]:
    """The lines of a CSV file, many at a time: a header, then one for each row of the data."""
    model = load_model(folder)
    parts = image_parts(model, folder, data) if model.side else table_parts(model, data)
    is_class, targets = model.targets.task == "classification", model.targets.names
    for number, (names, inputs) in enumerate(parts):
        if number == 0:
            beside = [free_name(name, targets) for name in ("row", "probability")[: 1 + is_class]]
            yield csv_lines([[beside[0], *targets, *beside[1:]]])
        outputs = mean_outputs(model.networks, inputs, model.targets.task)
        rows = model.targets.readable(outputs)
        shares = [[float(share)] for share in outputs.max(1)] if is_class else [[]] * len(rows)
        yield csv_lines([name, *row, *share] for name, row, share in zip(names, rows, shares, strict=True))


def free_name(name: str, taken: Sequence[str]) -> str:
    """A name for a column that no target has."""
    return name if name not in taken else free_name(f"{name}_", taken)


def image_parts(model: Model, folder: Path, data: Path) -> Iterator[tuple[Sequence[Any], NDArray]]:
    if not data.is_dir():
        raise InputError(f"{folder} was fitted to images: give a folder of them, not {data}.")
    paths = find_images(data)
    yield [path.as_posix() for path in paths], read_images(data, paths, model.side)


def table_parts(model: Model, data: Path) -> Iterator[tuple[Sequence[Any], NDArray]]:
    """The row numbers and inputs of a table, part by part if it is large."""
    shards = open_shards(data) if is_shards(data) else None
    if shards is None or shards.bytes_in_memory <= MOST_IN_MEMORY:
        frame = read_frame(data, words=model.encoding.words)
        check_columns(frame, model)
        yield range(1, len(frame) + 1), model.encoding.apply(frame)
        return
    check_columns(Frame(data, dict.fromkeys(shards.columns, np.empty(0))), model)
    for frame in frames(shards, model.encoding.names):
        assert frame.row_numbers is not None
        yield (frame.row_numbers + 1).tolist(), model.encoding.apply(frame)


def check_columns(frame: Frame, model: Model) -> None:
    """Refuse a table without a column that the model reads; order and other columns do not matter."""
    missing = [name for name in model.encoding.names if name not in frame.columns]
    if missing:
        near = unknown("column", missing[0], dict.fromkeys(frame.columns))
        count = f" {len(missing)} columns are missing: {', '.join(missing)}." if len(missing) > 1 else ""
        raise InputError(f"{frame.path}: the model reads a column that is not there. {near}{count}")
