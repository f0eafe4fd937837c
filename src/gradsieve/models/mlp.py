"""A fully connected network. The paper uses 512-256-256-10 on CelebA's features."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from gradsieve.models.blocks import SLOPE
from gradsieve.models.blocks import norm as make_norm


def mlp(
    input_shape: Sequence[int], outputs: int, *, hidden: Sequence[int] = (256, 256), norm: str = "none"
) -> nn.Module:
    """Fully connected layers with leaky ReLU, over the flattened input."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = prod(input_shape)
    for units in hidden:
        layers += [nn.Linear(width, units), make_norm(norm, units, flat=True), nn.LeakyReLU(SLOPE)]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))
