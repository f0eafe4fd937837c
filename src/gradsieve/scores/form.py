"""The form that a network takes while it is only asked for scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

Scoring = Literal["eval", "train"]


@contextmanager
def scoring_form(network: nn.Module, form: Scoring) -> Iterator[None]:
    """Score in eval form (running statistics, no dropout) or in train form, and leave no trace.

    In train form BatchNorm uses the batch's own statistics, as the paper's authors do, but its
    running statistics stay as they were: rows that are about to be dropped must not enter them.
    """
    modules = all_modules(network)
    before = [module.training for module in modules]
    norms = []
    if form == "train":
        norms = [module for module in modules if isinstance(module, _NormBase) and module.track_running_stats]
    statistics = [(norm.running_mean, norm.running_var) for norm in norms]
    switch(network, form == "train")
    for norm in norms:
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = None  # InstanceNorm would go on to update them
    try:
        yield
    finally:
        for norm, (mean, variance) in zip(norms, statistics, strict=True):
            norm.track_running_stats = True
            norm.running_mean, norm.running_var = mean, variance
        for module, training in zip(modules, before, strict=True):
            set_training(module, training)


# In a small network the forms of its modules cost as much as the scores: ``modules()``, ``train()`` and the
# attributes of a module go through more Python than they need, once a module, twice a step.


def all_modules(network: nn.Module) -> list[nn.Module]:
    """``list(network.modules())``."""
    found = {network: None}
    waiting = [network]
    while waiting:
        for module in waiting.pop()._modules.values():
            if module is not None and module not in found:
                found[module] = None
                waiting.append(module)
    return list(found)


def switch(network: nn.Module, training: bool) -> None:
    """``network.train(training)``, with a call of the method only where a module has one of its own."""
    waiting = [network]
    while waiting:
        module = waiting.pop()
        if getattr(module.train, "__func__", None) is nn.Module.train:
            set_training(module, training)
            waiting += [child for child in module._modules.values() if child is not None]
        else:
            module.train(training)


def set_training(module: nn.Module, training: bool) -> None:
    """``module.training = training``, past the search for parameters among the attributes."""
    if type(module).__setattr__ is nn.Module.__setattr__ and "training" in module.__dict__:
        module.__dict__["training"] = training
    else:  # scripted, compiled: it lives elsewhere
        module.training = training
