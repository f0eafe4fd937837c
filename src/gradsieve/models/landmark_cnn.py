"""A small CNN for the coordinates of landmarks. Its features are the inputs of the paper's Table 1."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gradsieve.models.blocks import SLOPE, image_shape, scaled
from gradsieve.models.blocks import norm as make_norm

CHANNELS = (32, 64, 128)  # of the three convolutions


class LandmarkCNN(nn.Module):
    """``body``, convolutions and a projection, gives an image's features; the linear ``head`` gives its outputs."""

    def __init__(self, body: nn.Module, features: int, outputs: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(features, outputs)

    def features(self, inputs: Tensor) -> Tensor:
        """The features (N, features) of images (N, C, H, W), which the head takes."""
        return self.body(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features(inputs))


def landmark_cnn(
    input_shape: Sequence[int],
    outputs: int,
    *,
    features: int = 512,
    width: float = 1.0,
    norm: str = "none",
) -> LandmarkCNN:
    """Three stride-2 convolutions to 512 features, then a linear head: the paper's way to CelebA's features.

    The paper only says "three-layer CNN" and 512 features. We flatten and project: averaging over positions would lose
    where a landmark is. ``width`` multiplies the channels.
    """
    channels, *size = image_shape("landmark-cnn", input_shape)
    layers: list[nn.Module] = []
    for count in (scaled(count, width) for count in CHANNELS):
        size = [(side + 1) // 2 for side in size]
        layers += [
            nn.Conv2d(channels, count, 3, stride=2, padding=1),
            make_norm(norm, count, positions=size[0] * size[1]),
            nn.LeakyReLU(SLOPE),
        ]
        channels = count
    layers += [nn.Flatten(), nn.Linear(channels * size[0] * size[1], features), nn.LeakyReLU(SLOPE)]
    return LandmarkCNN(nn.Sequential(*layers), features, outputs)
