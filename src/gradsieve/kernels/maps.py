"""The arguments of kernels, checked, so that no kernel reads or writes past their ends."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradsieve.errors import InputError


class Maps(NamedTuple):
    """A convolution's input and output gradient, with the channels of a pixel side by side in memory."""

    activations: Tensor  # (N, inputs, height, width)
    gradient: Tensor  # (N, outputs, lines, columns)

    @property
    def channels(self) -> tuple[int, int]:
        """Inputs and outputs."""
        return self.activations.shape[1], self.gradient.shape[1]

    @property
    def positions(self) -> int:
        return self.gradient.shape[2] * self.gradient.shape[3]

    def sizes(self, padding: int) -> dict[str, int]:
        """The sizes of both maps by the names that they have in a kernel."""
        (height, width), (lines, columns) = self.activations.shape[2:], self.gradient.shape[2:]
        inputs, outputs = self.channels
        of_maps = {"HEIGHT": height, "WIDTH": width, "LINES": lines, "COLUMNS": columns}
        return {**of_maps, "PADDING": padding, "OUTPUTS": outputs, "INPUTS": inputs}


def checked_maps(activations: Tensor, gradient: Tensor, padding: int) -> Maps:
    """The two maps of a 3x3 convolution, copied only where their channels are not last in memory."""
    rows, _, height, width = activations.shape
    seen = (rows, height + 2 * padding - 2, width + 2 * padding - 2)
    if padding not in (0, 1) or seen != (len(gradient), *gradient.shape[2:]):
        raise InputError(
            f"activations {tuple(activations.shape)} and gradient {tuple(gradient.shape)} are not the input and output "
            f"of a 3x3 convolution with stride 1 and padding {padding!r} (0 or 1)."
        )
    if activations.dtype != gradient.dtype:
        raise InputError(
            f"activations are {activations.dtype}, gradient is {gradient.dtype}: a kernel multiplies one type. "
            "Convert the activations."
        )
    return Maps(
        activations.contiguous(memory_format=torch.channels_last),
        gradient.contiguous(memory_format=torch.channels_last),
    )


def store_arguments(maps: Maps, store: Tensor | None, squares: Tensor) -> tuple[Tensor, Tensor, int]:
    """The kernels' arguments stored, squares, stored_stride. ``store``: where to write the rows' weight gradients."""
    if store is None:
        return squares, squares, 0  # a kernel needs some pointer, though it never follows this one
    (inputs, outputs), rows = maps.channels, len(maps.gradient)
    size = outputs * 9 * inputs
    if store.shape != (rows, size) or store.stride(1) != 1:
        raise InputError(
            f"store has shape {tuple(store.shape)} and strides {store.stride()}, but {rows} weight gradients of {size} "
            f"values need ({rows}, {size}), with the values of a row side by side."
        )
    return store, squares, store.stride(0)
