"""What the networks share: normalisation, dropout, and checks of image shapes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gradsieve.counts import check_rate
from gradsieve.errors import InputError

NORMS = ("batch", "group", "none")
SLOPE = 0.01  # negative slope of every leaky ReLU
GROUP_VALUES = 4  # values in a group of GroupNorm at least: fewer have no meaningful variance, and one becomes 0


def norm(
    kind: str,
    channels: int,
    *,
    positions: int = GROUP_VALUES,
    flat: bool = False,
    among: Sequence[str] = NORMS,
) -> nn.Module:
    """The normalisation ``kind`` for maps of ``positions`` pixels, or for ``flat`` (N, channels) vectors."""
    if kind not in among:
        raise InputError(f"norm is {kind!r}, but it must be one of: {', '.join(among)}.")
    if kind == "batch":
        return nn.BatchNorm1d(channels) if flat else nn.BatchNorm2d(channels)
    if kind == "group":
        return nn.GroupNorm(_groups(channels, 1 if flat else positions), channels)
    return nn.Identity()


def _groups(channels: int, positions: int) -> int:
    """The largest number of groups, at most 32, that divides the channels into equal, large enough groups."""
    fitting = (
        count
        for count in range(1, min(32, channels) + 1)
        if channels % count == 0 and channels // count * positions >= GROUP_VALUES
    )
    return max(fitting, default=1)


def dropout(rate: float, *, always: bool = False) -> nn.Module:
    """Dropout of whole channels: off in eval mode, or ``always`` on, as in the authors' code."""
    return (AlwaysDropout2d if always else nn.Dropout2d)(check_rate("dropout", rate))


class AlwaysDropout2d(nn.Dropout2d):
    """Dropout that ``eval()`` does not turn off, as in the authors' code. Their figures depend on it."""

    def train(self, mode: bool = True) -> AlwaysDropout2d:
        super().train(True)
        return self


def image_shape(model: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of one input row, or an error that names the model."""
    if len(input_shape) != 3:
        raise InputError(
            f"{model} takes images (channels, height, width), but a row has shape {tuple(input_shape)}. "
            "Reshape the inputs, or use mlp."
        )
    channels, height, width = input_shape
    return channels, height, width


def scaled(channels: int, width: float) -> int:
    """``channels`` times the width multiplier, at least one."""
    if not width > 0:
        raise InputError(f"width is {width!r}, but a multiplier of the channels is above 0.")
    return max(1, round(channels * width))
