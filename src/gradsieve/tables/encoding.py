"""Columns as the inputs of a network. What is learned from a table is plain data and saved with the model.

A number is scaled by median and quartiles (``estimators.scaling``). A missing one becomes the median, and a second
column tells that it is missing. Words are one-hot encoded as by scikit-learn's OneHotEncoder with ``max_categories``
and ``handle_unknown="infrequent_if_exist"``: rare and unseen ones share a column. For regression, the correlations of
all these inputs are then removed (``estimators.decorrelating``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsieve.arguments import argument
from gradsieve.data import Task
from gradsieve.data.table import label
from gradsieve.errors import InputError
from gradsieve.estimators.decorrelating import Decorrelation, decorrelation
from gradsieve.estimators.scaling import CLIP, Scale, robust_scale, scale_inputs
from gradsieve.tables.frame import (
    Frame,
    check_exact,
    is_missing,
    is_text,
    number,
    numbers,
    texts,
    typed_values,
    written,
)
from gradsieve.tables.spelling import doubt_of_words, is_mostly_numbers

MOST_CATEGORIES = 64  # inputs of one column; rarer words share the last
UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # the names that row numbers get when pandas and R save them


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: its median and interquartile range, and whether cells were missing."""

    name: str
    centre: float
    width: float
    tells_missing: bool
    kind: str = "number"
    in_days: str = ""  # the kind of time that it holds (`IN_DAYS`), if any

    @property
    def size(self) -> int:
        return 1 + self.tells_missing

    def encode(self, frame: Frame, clip: float) -> NDArray[np.float32]:
        learnt = "dates, such as 2024-02-29" if self.in_days == "date" else f"{self.in_days or 'number'}s"
        values = numbers(frame, self.name, f"the model knows the column as {learnt}")
        missing = np.isnan(values)
        found, known = (f"{kind or 'number'}s" for kind in (frame.in_days(self.name), self.in_days))
        if found != known and not missing.all():
            raise InputError(
                f"{frame.path}: column {self.name} holds {found}, but the model knows it as {known}. Give it as such, "
                "or fit a model to a file of this kind."
            )
        scale = Scale(np.array([self.centre]), np.array([self.width]))
        scaled = scale_inputs(np.where(missing, self.centre, values)[:, None], scale, clip)
        return np.concatenate([scaled, missing[:, None].astype(np.float32)], axis=1)[:, : self.size]


@dataclass(frozen=True)
class CategoryColumn:
    """A column of words: those that have an input of their own; others share the last one if ``has_other``."""

    name: str
    categories: list[str]
    has_other: bool
    kind: str = "category"
    as_written: bool = False  # words are codes and compared as written: 01 is not 1

    @property
    def size(self) -> int:
        return len(self.categories) + self.has_other

    def encode(self, frame: Frame, clip: float) -> NDArray[np.float32]:
        cells, other = frame.columns[self.name], len(self.categories)
        knows_words_alone = all(number(name) is None for name in self.categories if written(name, among_numbers=True))
        is_typed = frame.lines is None  # in CSV a number may be a word
        if is_typed and not is_text(cells) and knows_words_alone and not np.isnan(cells).all():
            raise InputError(
                f"{frame.path}: column {self.name} holds numbers or dates, but the model knows it as words, such as "
                f"{max(self.categories)!r}. Give it as words, or fit a model to a file of this kind."
            )
        place = self.places(by_number=not is_text(cells))
        # Without a shared input, an unseen word is encoded as zeros.
        found = np.array([place.get(cell, other) for cell in texts(cells, as_written=self.as_written)])
        return (found[:, None] == np.arange(self.size)).astype(np.float32)

    def places(self, by_number: bool) -> dict[str, int]:
        """The input of each category. Codes in text match as written; else numbers match in any spelling, as 1 and 01,
        if only one category does. (A model of an older version may have other spellings of numbers as categories.)
        """
        place = {name: position for position, name in enumerate(self.categories)}
        if self.as_written and not by_number:
            return place
        labels = [label(name) for name in self.categories]
        return {name: position for position, name in enumerate(labels) if labels.count(name) == 1} | place


Column = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class Encoding:
    """How a frame becomes a network's inputs."""

    columns: Sequence[Column] = ()  # empty for images
    clip: float = CLIP
    decorrelation: Decorrelation | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def words(self) -> set[str]:
        """The columns of words: in another file their cells may all look like numbers."""
        return {each.name for each in self.columns if isinstance(each, CategoryColumn)}

    @property
    def size(self) -> int:
        """How many inputs the network has."""
        return sum(column.size for column in self.columns)

    def apply(self, frame: Frame) -> NDArray[np.float32]:
        """(N, size) inputs; those of a row do not depend on the rows beside it."""
        scaled = np.concatenate([column.encode(frame, self.clip) for column in self.columns], axis=1)
        return self.decorrelation.apply(scaled) if self.decorrelation else scaled


def find_gaps(frame: Frame, columns: Iterable[Column]) -> dict[str, NDArray[np.bool_]]:
    """(N,) the rows in which an input is missing, by its name, for inputs that are missing anywhere."""
    kinds = {column.name: isinstance(column, NumberColumn) for column in columns}
    found = {name: is_missing(frame.columns[name], among_numbers=is_number) for name, is_number in kinds.items()}
    return {name: is_gap for name, is_gap in found.items() if is_gap.any()}


def learn_encoding(
    frame: Frame, names: Iterable[str], categorical: Collection[str], task: Task, note: Callable[[str], None]
) -> Encoding:
    """Learn how columns become inputs: scaled, and for regression without their correlations."""
    encoding = Encoding(learn_columns(frame, names, categorical, note))
    if task != "regression":
        return encoding
    return replace(encoding, decorrelation=decorrelation(encoding.apply(frame)))


def learn_columns(
    frame: Frame, names: Iterable[str], categorical: Collection[str], note: Callable[[str], None]
) -> list[Column]:
    """Learn how each column becomes numbers; uninformative columns are left out with a note."""
    columns: list[Column] = []
    for name in names:
        if UNNAMED.fullmatch(name) and name not in categorical:
            # If rows are sorted by class, their numbers predict every given class, wrong ones too.
            note(f"column {name!r} is left out: it has no name, so it may number the rows; give it a name to use it")
            continue
        if holds_words(frame, name, categorical):
            doubt = doubt_of_words(frame.columns[name]) if name not in categorical else ""
            if doubt:
                way_out = f"or give {argument('categorical', name)} if they are words"
                note(f"column {name} is read as words, since {doubt}, {way_out}")
            column = learn_categories(frame, name, note, is_code=name in categorical)
        else:
            column = learn_number(frame, name, note)
        columns += [column] if column is not None else []
    if not columns:
        raise InputError(f"{frame.path}: no column is left to predict from. Give a table with informative columns.")
    return columns


def holds_words(frame: Frame, name: str, categorical: Collection[str]) -> bool:
    """Whether a column holds categories, as the user says or by its cells."""
    values = frame.columns[name]
    is_words = is_text(values) and not is_mostly_numbers(values) and typed_values(frame, name) is None
    return is_words or name in categorical


def learn_number(frame: Frame, name: str, note: Callable[[str], None]) -> NumberColumn | None:
    why = f"most of the column is numbers; if they are codes, give {argument('categorical', name)}"
    values = numbers(frame, name, why)
    missing = np.isnan(values)
    known = values[~missing]
    if not len(known) or (known.min() == known.max() and not missing.any()):
        note(f"column {name} is left out: it is {'empty' if not len(known) else 'constant'}")
        return None
    if len(values) > 2 and (np.diff(values) == 1).all():  # it stays, since it may count days, say
        way = f"if it says nothing else, leave it out: {argument('ignore', name)}"
        note(f"column {name} numbers the rows, and in a sorted table predicts wrong targets, too; {way}")
    scale = robust_scale(known[:, None])
    centre, width = float(scale.centre[0]), float(scale.width[0])
    return NumberColumn(name, centre, width, bool(missing.any()), in_days=frame.in_days(name))


def learn_categories(
    frame: Frame, name: str, note: Callable[[str], None], is_code: bool = False
) -> CategoryColumn | None:
    cells = frame.columns[name]
    as_written = is_code and is_text(cells)
    check_exact(frame, name, f"Write {name} as text, or leave {argument('categorical', name)} out.")
    counts = Counter(texts(cells, as_written=as_written))
    if len(counts) == 1 or len(counts) == len(frame) > 2:
        note(f"column {name} is left out: it is {'constant' if len(counts) == 1 else 'another word in every row'}")
        return None
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    has_other = len(ranked) > MOST_CATEGORIES
    categories = sorted(ranked[: MOST_CATEGORIES - 1] if has_other else ranked)
    return CategoryColumn(name, categories, has_other, as_written=as_written)


def to_json(columns: Iterable[Column]) -> list[dict[str, Any]]:
    return [asdict(column) for column in columns]


def from_json(values: Iterable[dict[str, Any]]) -> list[Column]:
    kinds = {"number": NumberColumn, "category": CategoryColumn}
    return [kinds[value["kind"]](**value) for value in values]
