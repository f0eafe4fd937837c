"""What a data set is, and its recipe: the default settings to train on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradsieve.errors import InputError
from gradsieve.registry import unknown

if TYPE_CHECKING:  # the table of data sets is listed without torch
    from torch import Tensor

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Rows:
    """Inputs with their targets, row by row."""

    inputs: Tensor  # (N, ...) float32, or uint8 images (N, C, H, W) that stand for [0, 1]
    targets: Tensor  # (N,) int64 classes, or (N, q) float32 regression targets

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class DataSet:
    """Training and test rows, with targets as their source has them."""

    task: Task
    train: Rows
    test: Rows
    output_names: tuple[str, ...]  # one per class, or one per target column
    pixels: tuple[Tensor, Tensor] | None = None  # for points in an image (x, y, x, y, ...): mean and std in pixels

    @property
    def outputs(self) -> int:
        """How many outputs a network must have."""
        return len(self.output_names)


@dataclass(frozen=True)
class Recipe:
    """The default network and training settings for a data set."""

    model: str
    epochs: int
    batch_size: int
    learning_rate: float
    ramp: int  # epochs until the drop rate is reached
    ramp_of: Mapping[str, int] = field(default_factory=dict)  # another ramp for some corruptions
    model_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """One row of DATASETS: how to get a data set and how to train it."""

    summary: str
    tasks: tuple[Task, ...]
    load: Callable[..., DataSet]  # load(folder: Path | None, **options); data without files ignores the folder
    recipe: Recipe
    layout: str = ""  # the files that must be in the folder, for error messages; empty if no files are read

    def __call__(self, folder: Path | None = None, **options: Any) -> DataSet:
        known = {each.name: each.default for each in list(signature(self.load).parameters.values())[1:]}
        for option, value in options.items():
            if option not in known:
                raise InputError(unknown("data option", option, known))
            if isinstance(known[option], str) and not isinstance(value, str):
                raise InputError(f'The data option {option} is {value!r}, a number, but must be text: "{value}".')
        return self.load(folder, **options)
