"""What a data set is, and how it is trained where nobody says otherwise."""

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
    targets: Tensor  # (N,) int64 classes, or (N, q) float32

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class DataSet:
    """Rows to train on and rows to test on. The targets are as trustworthy as their source."""

    task: Task
    train: Rows
    test: Rows
    output_names: tuple[str, ...]  # one per class, or one per target column
    pixels: tuple[Tensor, Tensor] | None = None  # where targets are points in an image: mean and std of x, y, x, y ...

    @property
    def outputs(self) -> int:
        """How many numbers a network must put out for one row."""
        return len(self.output_names)


@dataclass(frozen=True)
class Recipe:
    """The network and the training that suit a data set."""

    model: str
    epochs: int
    batch_size: int
    learning_rate: float
    ramp: int  # epochs until the drop rate is reached
    ramp_of: Mapping[str, int] = field(default_factory=dict)  # the same for a corruption of its own
    model_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """One row of DATASETS: how to get a data set and how to train it."""

    summary: str
    tasks: tuple[Task, ...]
    load: Callable[..., DataSet]  # load(folder: Path | None, **options); embedded data ignores it
    recipe: Recipe
    layout: str = ""  # the files that must be in the folder; empty where nothing is read

    def __call__(self, folder: Path | None = None, **options: Any) -> DataSet:
        known = {each.name: each.default for each in list(signature(self.load).parameters.values())[1:]}
        for option, value in options.items():
            if option not in known:
                raise InputError(unknown("data option", option, known))
            if isinstance(known[option], str) and not isinstance(value, str):
                raise InputError(f'The data option {option} is {value!r}, a number, but must be text: "{value}".')
        return self.load(folder, **options)
