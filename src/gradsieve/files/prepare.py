"""A user's file as numbers: inputs and targets, with the names of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gradsieve.arguments import argument
from gradsieve.data import Task
from gradsieve.errors import InputError
from gradsieve.files.images import SIDE, class_images, read_images
from gradsieve.registry import unknown
from gradsieve.tables.encoding import Encoding, find_gaps, learn_encoding
from gradsieve.tables.model_folder import Design
from gradsieve.tables.reading import read_frame
from gradsieve.tables.shards import is_shards
from gradsieve.tables.targets import (
    Targets,
    class_targets,
    filled_rows,
    learn_targets,
    left_out,
    real_valued_targets,
    spelt_alike,
    task_of,
    words_without_target,
)

HIDDEN = (256, 256)  # the units of each hidden layer


@dataclass(frozen=True)
class Prepared:
    """A file, ready to be fitted."""

    inputs: NDArray
    targets: Targets
    given: NDArray  # (N, targets) in the words or units of the file
    names: Sequence[Any]  # of the rows: their numbers from 1, or the paths of images
    encoding: Encoding = field(default_factory=Encoding)  # of a table
    side: int = 0  # of images
    gaps: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)  # (N,) where an input is missing, by its name

    def scaled(self, drops: bool) -> NDArray:
        """The targets as a network learns them, from a method that ``drops`` rows or does not."""
        return self.targets.scaled(self.given, drops)

    def design(self) -> Design:
        shape = list(self.inputs.shape[1:])
        if self.side:
            return Design("landmark-cnn", {}, shape, self.targets.outputs)
        return Design("mlp", {"hidden": list(HIDDEN)}, shape, self.targets.outputs)


def prepare(
    data: Path,
    targets: Sequence[str],
    task: Task | None,
    ignore: Sequence[str],
    categorical: Sequence[str],
    note: Callable[[str], None],
) -> Prepared:
    """A file, a folder of Parquet or Arrow files, or one of class folders, as numbers."""
    check_task(task)
    if data.is_dir() and not is_shards(data):
        prepared = prepare_images(data, targets, task, note)
    else:
        prepared = prepare_table(data, targets, task, ignore, categorical, note)
    if told := spelt_alike(prepared.targets.classes):
        note(told)
    return prepared


def check_task(task: str | None) -> None:
    if task is not None and task not in get_args(Task):
        raise InputError(unknown("task", task, dict.fromkeys(get_args(Task))))


def prepare_table(
    data: Path,
    targets: Sequence[str],
    task: Task | None,
    ignore: Sequence[str],
    categorical: Sequence[str],
    note: Callable[[str], None],
) -> Prepared:
    """A table's columns as numbers; rows without a target are left out."""
    frame = read_frame(data, least_rows=2, words=categorical, as_text={*categorical} & {*targets})
    roles = frame.roles(targets, ignore, categorical)
    names, inputs, words = roles
    task = task_of(roles, task)
    filled = filled_rows(frame, names, real_valued_targets(frame, names, task))
    if filled.sum() < 2:
        raise InputError(f"{data}: {int(filled.sum())} rows have a value in {', '.join(names)}, but two are needed.")
    if not filled.all():
        note(left_out(int((~filled).sum()), words_without_target(frame, names, filled)))
    numbers = np.flatnonzero(filled) + 1
    frame = frame.take(filled)
    learnt, given = learn_targets(frame, names, task, as_written=roles.has_codes)
    encoding = learn_encoding(frame, inputs, words, learnt.task, note)
    gaps = find_gaps(frame, encoding.columns)
    return Prepared(encoding.apply(frame), learnt, given, numbers.tolist(), encoding, gaps=gaps)


def prepare_images(data: Path, targets: Sequence[str], task: Task | None, note: Callable[[str], None]) -> Prepared:
    """Images with the names of their folders as classes."""
    if not any(data.iterdir()):
        raise InputError(
            f"{data} is empty. Give a file, a folder of Parquet or Arrow files, or images in class folders."
        )
    if any(data.glob("*.csv")) and not any(each.is_dir() for each in data.iterdir()):
        raise InputError(
            f"{data} is a folder of CSV files, but a folder holds Parquet or Arrow files, or images in class folders. "
            "Join them into one CSV file."
        )
    if task == "regression" or targets:
        way = f"Give no {argument('targets')}." if targets else f"Leave {argument('task', task)} out."
        raise InputError(f"{data} is a folder of class folders: the target, a class, is the folder's name. {way}")
    paths, classes = class_images(data, note)
    given = np.array(classes, dtype=object)
    learnt = class_targets("folder", given, str(data))
    pixels = read_images(data, paths, SIDE)
    return Prepared(pixels, learnt, given[:, None], [path.as_posix() for path in paths], side=SIDE)
