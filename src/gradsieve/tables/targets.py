"""The targets of a table: the task that they imply, and their form for a network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradsieve.arguments import argument
from gradsieve.data import Task
from gradsieve.data.table import MISSING, sorted_classes
from gradsieve.errors import InputError
from gradsieve.estimators.scaling import Scale, scale_targets, target_scale
from gradsieve.tables.frame import (
    Frame,
    Roles,
    check_exact,
    is_missing,
    is_text,
    numbers,
    numeric_if_all,
    texts,
)
from gradsieve.tables.spelling import PLAIN, is_mostly_numbers, misspelt_number

FEW = 20  # up to this many different whole numbers are classes, more are real-valued

MOST_WORDS = 3  # examples in a note


@dataclass(frozen=True)
class Targets:
    """The names of the target columns, and their classes or scale."""

    task: Task
    names: list[str]
    classes: list[str]  # empty for regression
    centre: list[float]  # empty for classes
    width: list[float]
    as_written: bool = False  # the classes are codes: 01 is not 1

    @property
    def outputs(self) -> int:
        return len(self.classes) or len(self.names)

    def scaled(self, given: NDArray, drops: bool) -> NDArray:
        """Targets as a network learns them: (N,) class numbers, or (N, q) float32."""
        if self.task == "classification":
            place = {name: index for index, name in enumerate(self.classes)}
            return np.array([place[cell] for cell in given[:, 0]], dtype=np.int64)
        return scale_targets(given, self.scale, drops)

    def readable(self, outputs: NDArray) -> NDArray:
        """(N, targets) predictions in the words or units of the file, from (N, K) probabilities or (N, q) outputs."""
        if self.task == "classification":
            return np.array(self.classes, dtype=object)[outputs.argmax(1)][:, None]
        return self.scale.invert(outputs)

    @property
    def scale(self) -> Scale:
        return Scale(np.array(self.centre), np.array(self.width))


def task_of(roles: Roles, task: Task | None) -> Task | None:
    """The task that was asked for; classification if the target holds codes."""
    if not roles.has_codes:
        return task
    if len(roles.targets) > 1 or task == "regression":
        codes = argument("categorical")
        why = "the task is regression" if task == "regression" else f"{len(roles.targets)} targets must be numbers"
        raise InputError(
            f"{codes} names a target, whose codes are classes, but {why} ({', '.join(roles.targets)}). Leave it out of "
            f"{codes}, or name it alone as {argument('targets')} of a classification."
        )
    return "classification"


def real_valued_targets(frame: Frame, names: Sequence[str], task: Task | None) -> list[str]:
    """The targets whose cells are numbers, by the task or else by most of the cells."""
    if task is not None:
        return list(names) if task == "regression" else []
    return [name for name in names if is_text(frame.columns[name]) and is_mostly_numbers(frame.columns[name])]


def filled_rows(frame: Frame, names: Sequence[str], real_valued: Collection[str]) -> NDArray[np.bool_]:
    """The rows in which no target is missing. A word such as none is missing in a real-valued one, else a class."""
    filled = np.ones(len(frame), dtype=bool)
    for name in names:
        filled &= ~is_missing(frame.columns[name], among_numbers=name in real_valued)
    return filled


def left_out(count: int, said: Collection[str]) -> str:
    """A note about rows without a target and the words in their cells, which may be meant as a class."""
    words = ", ".join(repr(word) for word in sorted(said)[:MOST_WORDS])
    hint = f" (cells that read {words} count as missing; a class must have another name)" if words else ""
    return f"{count} rows are left out: they have no target{hint}"


def spelt_alike(classes: Iterable[str]) -> str:
    """A note about classes that differ in capitals alone, where one is often a slip of the other; else empty."""
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(name.casefold(), []).append(name)
    alike = next((names for names in spellings.values() if len(names) > 1), [])
    if not alike:
        return ""
    return (
        f"{' and '.join(map(repr, alike))} are different classes: they differ in capitals alone; if they are one, "
        "write them alike"
    )


def words_without_target(frame: Frame, names: Sequence[str], filled: NDArray[np.bool_]) -> set[str]:
    """The words that stand for missing values in the targets."""
    cells = (frame.columns[name][~filled] for name in names if is_text(frame.columns[name]))
    said = {str(cell).strip() for column in cells for cell in column}
    return {word for word in said if word and word.lower() in MISSING}


def learn_targets(
    frame: Frame, names: list[str], task: Task | None, *, as_written: bool = False
) -> tuple[Targets, NDArray]:
    """The targets of a table without missing ones, and each row's given values, (N, targets)."""
    task = task or infer_task(frame, names)
    if task == "classification":
        return learn_classes(frame, names, as_written)
    given = given_numbers(frame, names)
    for place, name in enumerate(names):
        if given[:, place].min() == given[:, place].max():
            raise InputError(
                f"{frame.path}: the target {name} is {given[0, place]:g} in all {len(given)} rows, so there is nothing "
                f"to learn. Choose another column as {argument('targets')}."
            )
    scale = target_scale(given)
    return Targets(task, names, [], scale.centre.tolist(), scale.width.tolist()), given


def given_numbers(frame: Frame, names: list[str]) -> NDArray[np.float64]:
    """(N, targets) real-valued targets."""
    for name in names:
        check_spelling(frame, name)
    if len(names) == 1:
        return numbers(frame, names[0], "the target of a regression is a number")[:, None]
    way = "Correct the cell or leave it empty; a column of classes needs a fit of its own, with no other target."
    why = f"{len(names)} targets must all be numbers"
    return np.stack([numbers(frame, name, why, way) for name in names], axis=1)


def given_targets(frame: Frame, targets: Targets) -> NDArray:
    """The given values in a table of targets that are known already, (N, targets)."""
    if targets.task == "classification":
        return class_names(frame, targets.names[0], targets.as_written)[:, None]
    return given_numbers(frame, targets.names)


def infer_task(frame: Frame, names: list[str]) -> Task:
    """Words and few different whole numbers are classes; other numbers, and several targets, are a regression."""
    if len(names) > 1:
        return "regression"
    values = frame.columns[names[0]]
    if is_text(values):
        if not is_mostly_numbers(values):
            if len(set(values.tolist())) > FEW:
                check_spelling(frame, names[0])
            return "classification"
        values = numeric_if_all(values)  # typed files may have codes as text, too
        if is_text(values):
            return "regression"
    different = np.unique(values)
    is_few = len(different) <= FEW and len(different) <= max(2, len(values) // 10)
    return "classification" if is_few and (different == np.floor(different)).all() else "regression"


def check_spelling(frame: Frame, name: str) -> None:
    """Refuse numbers in other spellings, such as 403,96 or $403.96, before they are taken for words."""
    values = frame.columns[name]
    cell = None if not is_text(values) or is_mostly_numbers(values) else misspelt_number(values)
    if cell is not None:
        raise InputError(
            f"{frame.path}: the target {name} holds numbers in another spelling, such as {cell!r}. Write them as 20.5: "
            f"{PLAIN}."
        )


def class_names(frame: Frame, name: str, as_written: bool) -> NDArray:
    """The class of each row."""
    check_codes(frame, name)
    return texts(frame.columns[name], as_written=as_written)


def check_codes(frame: Frame, name: str) -> None:
    """Refuse numeric classes that are too large to be told apart."""
    check_exact(frame, name, f"Give {argument('categorical', name)}, which takes classes as they are written.")


def learn_classes(frame: Frame, names: list[str], as_written: bool) -> tuple[Targets, NDArray]:
    if len(names) > 1:
        raise InputError(
            f"{argument('targets')} names {len(names)} columns, but classification has one: {', '.join(names)}."
        )
    given = class_names(frame, names[0], as_written)
    return replace(class_targets(names[0], given, str(frame.path)), as_written=as_written), given[:, None]


def class_targets(name: str, given: NDArray, where: str) -> Targets:
    """The classes of a target, checked."""
    classes = sorted_classes(given)
    if len(classes) < 2:
        raise InputError(
            f"{where}: the target {name} has one class, {classes[0]!r}, in all {len(given)} rows, so there is nothing "
            f"to learn. Give rows of a second class, or choose another column as {argument('targets')}."
        )
    check_classes(name, len(classes), len(given), where)
    return Targets("classification", [name], list(classes), [], [])


def check_classes(name: str, different: int, rows: int, where: str) -> None:
    """Refuse a target with too many different values to be classes."""
    if different > rows // 2:
        raise InputError(
            f"{where}: the target {name} has {different} different values in {rows} rows, which is not a set of "
            f"classes. {another_target()}"
        )


def another_target() -> str:
    """The advice if a column is no set of classes."""
    return f"Choose another column as {argument('targets')}, or {argument('task', 'regression')} where it is a number."


def row_header(targets: Targets) -> list[str]:
    """The columns of rows.csv."""
    suffixes = [""] if len(targets.names) == 1 else [f" {name}" for name in targets.names]
    return ["row", "score", "kept", *(f"given{end}" for end in suffixes), *(f"predicted{end}" for end in suffixes)]
