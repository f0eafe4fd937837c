"""ResNet-32 in its CIFAR form (He et al. 2016, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve.models.blocks import image_shape
from gradsieve.models.blocks import norm as make_norm

STAGES = (16, 32, 64)  # channels of each stage
BLOCKS = 5  # per stage, of two convolutions: with the first convolution and the linear layer, 32 layers


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut that has no parameters (option A of He et al.)."""

    def __init__(self, channels: int, features: int, stride: int, norm: str, positions: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = features - channels
        self.conv1 = nn.Conv2d(channels, features, 3, stride, padding=1, bias=False)
        self.norm1 = make_norm(norm, features, positions=positions)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1, bias=False)
        self.norm2 = make_norm(norm, features, positions=positions)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))

    def shortcut(self, inputs: Tensor) -> Tensor:
        """The inputs at every ``stride``-th position, padded with zeros to the new number of channels."""
        if not self.new_channels:
            return inputs
        before = self.new_channels // 2
        thinned = inputs[:, :, :: self.stride, :: self.stride]
        return F.pad(thinned, (0, 0, 0, 0, before, self.new_channels - before))


def resnet32(input_shape: Sequence[int], outputs: int, *, norm: str = "batch") -> nn.Module:
    """Residual network of 32 layers for small images, with shortcuts that have no parameters.

    ``norm`` is batch or group: thirty layers without normalisation do not train.
    """
    channels, height, width = image_shape("resnet32", input_shape)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, STAGES[0], 3, padding=1, bias=False),
        make_norm(norm, STAGES[0], positions=height * width, among=("batch", "group")),
        nn.ReLU(),
    ]
    channels = STAGES[0]
    for features in STAGES:
        stride = 1 if features == channels else 2  # later stages begin by halving the image
        height, width = -(-height // stride), -(-width // stride)
        for step in (stride, *[1] * (BLOCKS - 1)):
            layers.append(BasicBlock(channels, features, step, norm, height * width))
            channels = features
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return network
