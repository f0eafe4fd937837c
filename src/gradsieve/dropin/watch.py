"""Notice when a user changes a criterion's options, such as its weight or smoothing, between two calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import eq, is_
from types import FunctionType
from typing import Any

from gradsieve.scores.loss import MODULES, Criterion

OPTIONS = ("reduction", "ignore_index", "label_smoothing", "delta", "beta")
OPTIONS_OF_ANY = ("reduction", "ignore_index")  # what is read from a loss of the user's own too


def watch(criterion: Criterion) -> Callable[[], bool]:
    """A function that says, in every call, whether the criterion's options are still what they are now."""
    if isinstance(criterion, partial):
        return partial(is_same_partial, watch(criterion.func), criterion.keywords, dict(criterion.keywords))
    if isinstance(criterion, FunctionType) or not hasattr(criterion, "__dict__"):
        return always
    own = vars(criterion)
    names, tensors = (OPTIONS, own["_buffers"]) if type(criterion) in MODULES else (OPTIONS_OF_ANY, {})
    return partial(is_same, own, names, [own.get(name) for name in names], tensors, list(tensors), [*tensors.values()])


def always() -> bool:
    return True


def is_same_partial(is_same_function: Callable[[], bool], options: dict[str, Any], before: dict[str, Any]) -> bool:
    is_same_set = options.keys() == before.keys() and all(map(is_, options.values(), before.values()))
    return is_same_set and is_same_function()


def is_same(
    own: dict[str, Any],
    options: Sequence[str],
    values: list[Any],
    tensors: dict[str, Any],
    names: list[str],
    held: list[Any],
) -> bool:
    # A loop in Python would take longer than all of this.
    return all(map(eq, map(own.get, options), values)) and all(map(is_, map(tensors.get, names), held))
