"""What every corruption returns, and what they share: checks, the choice of rows, helpers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gradsieve.counts import check_rate, part
from gradsieve.data.dataset import Task
from gradsieve.data.validate import check_finite
from gradsieve.errors import InputError
from gradsieve.registry import unknown


class Corrupted(NamedTuple):
    """Targets after a corruption, and which of them are corrupted, for metrics only."""

    targets: Tensor  # like the targets that came in
    is_corrupted: Tensor  # (N,) bool


class Corruption(Protocol):
    """A pure function that replaces the targets of exactly floor(rate * N) rows."""

    tasks: tuple[Task, ...]
    __doc__: str | None

    def __call__(
        self, inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator, **options: Any
    ) -> Corrupted: ...


def serves(*tasks: Task) -> Callable[[Any], Corruption]:
    """Declare which tasks a corruption is made for, and check its arguments and its result.

    The function returns ``Corrupted(targets, is_corrupted)``, targets of the same shape and type as it got; or the
    targets alone: then the rows that changed count as corrupted.
    """

    def mark(function: Any) -> Corruption:
        known = dict.fromkeys(list(inspect.signature(function).parameters)[4:])

        @wraps(function)
        def corruption(
            inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator, **options: Any
        ) -> Corrupted:
            check_rate("rate", rate)
            check_task(function.__name__, tasks, inputs, targets)
            for name in options:
                if name not in known:
                    raise InputError(unknown(f"option of {function.__name__}", name, known))
            # On the CPU, like the generator: the same seed corrupts the same rows on every device. And a copy: a
            # user's function may write into its argument, which must not change the clean targets.
            clean, own = targets.cpu(), inputs.cpu()
            version = own._version
            answer = function(own, clean.clone(), rate, generator, **options)
            if own._version != version:
                raise InputError(
                    f"corruption {function.__name__!r} changes the inputs in place, which the network would be trained "
                    "on. It may only give other targets: let it work on inputs.clone()."
                )
            corrupted = as_corrupted(function.__name__, answer, clean)
            return Corrupted(*(tensor.to(targets.device) for tensor in corrupted))

        marked: Any = corruption
        marked.tasks = tasks
        return marked

    return mark


def as_corrupted(name: str, answer: Any, clean: Tensor) -> Corrupted:
    """The checked result of a corruption: its targets must fit, and no changed row may be marked as clean."""
    targets, is_corrupted = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    if not isinstance(targets, Tensor) or targets.shape != clean.shape or targets.dtype != clean.dtype:
        found = f"{tuple(targets.shape)}, {targets.dtype}" if isinstance(targets, Tensor) else type(targets).__name__
        raise InputError(
            f"corruption {name!r} returns {found}, but must return targets as it got them, {tuple(clean.shape)}, "
            f"{clean.dtype}; or Corrupted(targets, is_corrupted)."
        )
    changed = (targets != clean).unsqueeze(1).flatten(1).any(1)
    if is_corrupted is None:
        return Corrupted(targets, changed)
    if not isinstance(is_corrupted, Tensor) or is_corrupted.shape != changed.shape or is_corrupted.dtype != torch.bool:
        raise InputError(
            f"corruption {name!r} returns an is_corrupted that is not {len(clean)} times yes or no (torch.bool). "
            "Return the targets alone to have it found."
        )
    unmarked = changed & ~is_corrupted
    if unmarked.any():
        raise InputError(
            f"corruption {name!r} changes the targets of {int(unmarked.sum())} rows that its is_corrupted calls clean, "
            f"row {int(unmarked.nonzero()[0])} first: purity would be wrong. Mark them, or return the targets alone."
        )
    return Corrupted(targets, is_corrupted)


def task_of(targets: Tensor) -> Task:
    """The task of targets: integers are classes, floats are regression targets."""
    return "regression" if targets.is_floating_point() else "classification"


def check_task(name: str, tasks: tuple[Task, ...], inputs: Tensor, targets: Tensor) -> None:
    """Refuse targets of another task, and inputs and targets that do not match."""
    task = task_of(targets)
    if task not in tasks:
        from gradsieve.corruptions import CORRUPTIONS  # only here: the table imports every corruption

        fitting = ", ".join(other for other, entry in CORRUPTIONS.items() if task in entry.tasks)
        raise InputError(
            f"corruption {name!r} is made for {' and '.join(tasks)}, but targets is {targets.dtype} ({task}). "
            f"For {task} there are: {fitting}."
        )
    if len(targets) == 0 or len(inputs) != len(targets):
        raise InputError(
            f"inputs has {len(inputs)} rows and targets has {len(targets)}, but every row needs both. "
            "Pass at least one row, and as many inputs as targets."
        )
    if targets.ndim != (2 if task == "regression" else 1):
        wanted = "(N, q): for q = 1 pass targets[:, None]" if task == "regression" else "(N,), a class each"
        raise InputError(f"targets has the shape {tuple(targets.shape)}, but {task} targets are {wanted}.")
    check_finite("inputs", inputs)
    check_finite("targets", targets)


def count_classes(targets: Tensor, classes: int | None) -> int:
    """``classes``, checked, or by default the largest label plus one; at least two."""
    seen = int(targets.max()) + 1
    classes = seen if classes is None else classes
    if not isinstance(classes, int) or classes < 2:
        raise InputError(f"The number of classes is {classes!r}, but a wrong label needs two: pass classes=.")
    outside = (targets < 0) | (targets >= classes)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise InputError(
            f"targets[{row}] is {int(targets[row])}, but there are {classes} classes (0 to {classes - 1}). "
            "Correct the row or pass the right number as classes=."
        )
    return classes


def choose_rows(rate: float, rows: int, generator: torch.Generator) -> Tensor:
    """Exactly floor(rate * rows) row indices, drawn without replacement."""
    count = part(check_rate("rate", rate), rows)
    return torch.randperm(rows, generator=generator)[:count]


def replace_rows(targets: Tensor, rows: Tensor, values: Tensor) -> Corrupted:
    """A copy of ``targets`` with ``values`` at ``rows``."""
    corrupted = targets.clone()
    corrupted[rows] = values.to(targets.dtype)
    is_corrupted = torch.zeros(len(targets), dtype=torch.bool)
    is_corrupted[rows] = True
    return Corrupted(corrupted, is_corrupted)


def flat(inputs: Tensor) -> Tensor:
    """Inputs as rows of float32 features; uint8 is scaled to [0, 1]."""
    features = inputs[:, None].flatten(1).float()  # the new axis: (N,) inputs become (N, 1)
    return features / 255 if inputs.dtype == torch.uint8 else features
