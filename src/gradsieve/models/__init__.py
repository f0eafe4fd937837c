"""Networks of the paper, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradsieve.registry import Registry

if TYPE_CHECKING:  # the table is listed without torch
    from torch import nn

# An entry takes the shape of one input row, the number of outputs, and options of its own.
MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model",
    {
        "mlp": "gradsieve.models.mlp:mlp",
        "cnn9": "gradsieve.models.cnn9:cnn9",
        "landmark-cnn": "gradsieve.models.landmark_cnn:landmark_cnn",
        "resnet32": "gradsieve.models.resnet32:resnet32",
    },
    needs=("__call__",),
    way="A model is a function or class of (input_shape, outputs).",
)

__all__ = ["MODELS"]
