"""Corruptions: what may have happened to the targets, and the one table of them."""

from gradsieve.corruptions.corruption import Corrupted, Corruption
from gradsieve.registry import Registry

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
)

__all__ = ["CORRUPTIONS", "Corrupted", "Corruption"]
