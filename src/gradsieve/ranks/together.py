"""JSON values exchanged between ranks, and how ranks go on or stop together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from gradsieve.errors import GradsieveError, InputError, RankError
from gradsieve.ranks.collectives import gather_packed, message_device
from gradsieve.ranks.group import is_first, rank, world_size

T = TypeVar("T")


def gather_json(value: Any) -> list[Any]:
    """The value of every rank, in rank order."""
    if world_size() == 1:
        return [value]
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    _, everyone = gather_packed(content.unsqueeze(1).to(message_device()))
    return [json.loads(bytes(each.squeeze(1).tolist())) for each in everyone]


def from_first(value: T) -> T:
    """The value of the first rank; what the others pass is ignored."""
    return gather_json(value if is_first() else None)[0]


def agreed(action: Callable[[], T]) -> T:
    """``action()`` on every rank. If it fails on any, the first rank raises that error, and the others stop too."""
    if world_size() == 1:
        return action()
    result, failure = None, None
    try:
        result = action()
    except GradsieveError as error:
        failure = error
    messages = gather_json(None if failure is None else str(failure))
    failed = [number for number, message in enumerate(messages) if message is not None]
    if not failed:
        return result  # pyright: ignore[reportReturnType]
    if failure is not None and is_first():
        raise failure
    message = messages[failed[0]]
    raise RankError(f"rank {failed[0]}: {message}" if failed[0] else message, quiet=not is_first()) from failure


def require_alike(what: str, value: Mapping[str, Any]) -> None:
    """Raise unless all ranks have the same values, and say where the first other one differs."""
    everyone = gather_json(dict(value))
    for number, other in enumerate(everyone):
        if other != everyone[0]:
            message = f"rank {number} has {what} of its own ({differences(other, everyone[0])}). Start all ranks alike."
            raise InputError(message) if rank() == 0 else RankError(message, quiet=True)


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Where two mappings differ, in words; inner mappings with the same keys are compared entry by entry."""

    def in_words(name: str) -> str:
        there, here = theirs.get(name), ours.get(name)
        if isinstance(there, Mapping) and isinstance(here, Mapping) and there.keys() == here.keys():
            return differences(there, here)
        return f"{name} is {there!r} there, {here!r} here"

    names = dict.fromkeys([*ours, *theirs])
    return "; ".join(
        in_words(name) for name in names if name not in theirs or name not in ours or theirs[name] != ours[name]
    )
