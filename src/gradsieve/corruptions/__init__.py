"""Corruptions, which make some of the targets wrong on purpose, and the table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradsieve.registry import Registry

if TYPE_CHECKING:  # the table is listed without torch
    from gradsieve.corruptions.corruption import Corruption

CORRUPTIONS: Registry[Corruption] = Registry(
    "corruption",
    {
        "none": "gradsieve.corruptions.none:none",
        "symmetric": "gradsieve.corruptions.symmetric:symmetric",
        "pairflip": "gradsieve.corruptions.pairflip:pairflip",
        "signflip": "gradsieve.corruptions.signflip:signflip",
        "uninoise": "gradsieve.corruptions.uninoise:uninoise",
        "linadv": "gradsieve.corruptions.linadv:linadv",
        "mixture": "gradsieve.corruptions.mixture:mixture",
        "instance": "gradsieve.corruptions.instance:instance",
        "adversarial": "gradsieve.corruptions.adversarial:adversarial",
    },
    needs=("tasks",),
    way="Put @gradsieve.corruptions.corruption.serves('classification') over the function, or 'regression'.",
)

__all__ = ["CORRUPTIONS"]
