"""A network must return one tensor, from which each row's loss is computed. Errors describe what it returns instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from gradsieve.errors import InputError

NAMED = 5  # entries that an error lists


def one_tensor(outputs: Any) -> Tensor:
    """The outputs of a network, or an error that says what they are and where among them the tensor may be."""
    if isinstance(outputs, Tensor):
        return outputs
    raise InputError(
        f"The network returns {described(outputs)}, but one tensor is needed, with an entry for each row. Wrap it in a "
        f"module that returns the tensor that the loss takes{such_as('model(inputs)', outputs)}."
    )


def described(value: Any) -> str:
    """A value in words; its parts too, if there are tensors among them."""
    entries = parts(value)
    listed = [f"{way} {kind(part)}" for way, part in entries[:NAMED]]
    if len(entries) > NAMED:
        listed.append(f"{len(entries) - NAMED} more")
    holds_tensors = any(isinstance(part, Tensor) for _, part in entries)
    return f"a {type(value).__name__}" + (f" ({', '.join(listed)})" if holds_tensors else "")


def such_as(name: str, value: Any) -> str:
    """The words ", such as outputs.logits": how to get at the first part that can be the outputs."""
    ways = [way for way, part in parts(value) if isinstance(part, Tensor) and part.dim()]
    return f", such as {name}{ways[0]}" if ways else ""


def parts(value: Any) -> list[tuple[str, Any]]:
    """The parts of a value, each with the expression that leads to it, such as ['logits'] or .logits."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [(f"[{place}]", part) for place, part in enumerate(value)]
    if is_dataclass(value):
        return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)]
    return []


def kind(part: Any) -> str:
    return f"of shape {tuple(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
