"""Building a network by name, with checks of its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any
from weakref import WeakValueDictionary

from torch import nn

from gradsieve.errors import GradsieveError, InputError
from gradsieve.models import MODELS
from gradsieve.registry import unknown


def options_of(name: str) -> dict[str, Any]:
    """The options of the model ``name``, with their defaults."""
    parameters = signature(MODELS[name]).parameters.values()
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {each.name: each.default for each in list(parameters)[2:] if each.kind in named}


def build(name: str, input_shape: Sequence[int], outputs: int, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The network ``name`` for rows of ``input_shape``, with ``outputs`` numbers for each row."""
    options = options or {}
    known = options_of(name)
    for option in options:
        if option not in known:
            raise InputError(unknown(f"{name} option", option, known))
    if outputs < 1 or not input_shape or min(input_shape) < 1:
        raise InputError(
            f"{name} cannot be built for rows of shape {tuple(input_shape)} and {outputs} outputs: "
            "every size is at least 1."
        )
    try:
        network = MODELS[name](input_shape, outputs, **options)
    except GradsieveError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # such as text instead of a number, or a negative size
        reason = str(error).splitlines()[0]  # some of torch's messages continue with a list of signatures
        raise InputError(f"{name} cannot be built with the options {dict(options)} ({reason}).") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"model {name!r} gives {network!r}, but must return an nn.Module.")
    return network


_made: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()  # trainable parameters by their id


def require_new(what: str, network: nn.Module) -> nn.Module:
    """A network, or an error if a trainable part of it belongs to one that was made before: whoever trains the one
    would train the other, be it of the same run or of the next."""
    own = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    for name, parameter in own.items():
        if _made.get(id(parameter)) is parameter:
            raise InputError(
                f"{what} gives a network with the parameter {name} of one that it gave before: two networks, or two "
                "runs, would train it together. Make it anew in every call, or copy it (copy.deepcopy); only what is "
                "frozen may be shared."
            )
    _made.update({id(parameter): parameter for parameter in own.values()})
    return network
