"""The networks of an estimator: copies of a module, made by the user's function, or layers of given sizes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from torch import nn

from gradsieve.errors import InputError
from gradsieve.models.mlp import mlp

Builder = Callable[[tuple[int, ...], int], nn.Module]  # the shape of a row, the number of outputs -> a network


def network_maker(
    module: nn.Module | Builder | None, hidden: Any, shape: tuple[int, ...], outputs: int
) -> Callable[[int], nn.Module]:
    """A function that makes a network, given its number, for rows of this ``shape``."""
    if module is None:
        sizes = check_hidden(hidden)
        return lambda number: mlp(shape, outputs, hidden=sizes)
    if isinstance(module, nn.Module):
        return lambda number: fresh_copy(module, number)
    if not callable(module):
        raise InputError(f"module is {module!r}, but must be an nn.Module, or a function of (input_shape, outputs).")
    return lambda number: built(module, shape, outputs)


def built(builder: Builder, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network of the user's function or class."""
    try:
        inspect.signature(builder).bind(shape, outputs)
    except TypeError as error:
        raise InputError(
            f"module is {builder!r}, but is called with the shape of a row and the number of outputs: {error}. "
            "Pass a function or class of (input_shape, outputs), or an nn.Module that is already made."
        ) from error
    network = builder(shape, outputs)
    if not isinstance(network, nn.Module):
        raise InputError(f"module(input_shape, outputs) gives {type(network).__name__}, but must give an nn.Module.")
    return network


def check_hidden(hidden: Any) -> tuple[int, ...]:
    """The sizes of the hidden layers, checked; an empty list makes a linear model."""
    is_list = isinstance(hidden, Sequence) and not isinstance(hidden, str)
    if not is_list or not all(isinstance(size, Integral) and int(size) > 0 for size in hidden):
        raise InputError(f"hidden is {hidden!r}, but must be sizes of layers, such as (256, 256).")
    return tuple(int(size) for size in hidden)


def fresh_copy(module: nn.Module, number: int) -> nn.Module:
    """A copy for fitting. A second network is initialized anew: with the same weights, both would stay equal."""
    network = copy.deepcopy(module)
    for part in network.modules() if number else ():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
    return network
