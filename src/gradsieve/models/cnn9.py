"""The 9-layer CNN of Co-teaching, which the paper trains on CIFAR."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gradsieve.errors import InputError
from gradsieve.models.blocks import SLOPE, image_shape, scaled
from gradsieve.models.blocks import dropout as make_dropout
from gradsieve.models.blocks import norm as make_norm

# The channels of each stage's 3x3 convolutions, and their padding. A padded stage ends in 2x2 pooling and dropout.
STAGES = (((128, 128, 128), 1), ((256, 256, 256), 1), ((512, 256, 128), 0))
SMALLEST = 28  # side of the smallest image: two poolings reduce it to 7, three unpadded convolutions to 1


def cnn9(
    input_shape: Sequence[int],
    outputs: int,
    *,
    norm: str = "batch",
    width: float = 1.0,
    dropout: float = 0.25,
    always_dropout: bool = False,
) -> nn.Module:
    """Nine 3x3 convolutions in three stages, then a linear layer: the paper's network for CIFAR.

    ``width`` multiplies the channels. ``always_dropout`` leaves dropout on at test time and while scoring, as
    the authors' code does.
    """
    channels, *size = image_shape("cnn9", input_shape)
    if min(size) < SMALLEST:
        raise InputError(
            f"cnn9 takes images of {SMALLEST}x{SMALLEST} or more, but these are {size[0]}x{size[1]}: "
            "two poolings and three unpadded convolutions would leave nothing. "
            "Enlarge or pad them, or use resnet32 or mlp."
        )
    layers: list[nn.Module] = []
    for stage, padding in STAGES:
        for features in (scaled(count, width) for count in stage):
            size = [side + 2 * padding - 2 for side in size]
            layers += [
                # No bias before a norm, which would subtract it again with the mean.
                nn.Conv2d(channels, features, 3, padding=padding, bias=norm == "none"),
                make_norm(norm, features, positions=size[0] * size[1]),
                nn.LeakyReLU(SLOPE),
            ]
            channels = features
        if padding:
            layers += [nn.MaxPool2d(2), make_dropout(dropout, always=always_dropout)]
            size = [side // 2 for side in size]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))
