"""The form, eval or train, that a network takes during a pass that only scores rows."""

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
        norm.running_mean = norm.running_var = None  # InstanceNorm would still update them
    try:
        yield
    finally:
        for norm, (mean, variance) in zip(norms, statistics, strict=True):
            norm.track_running_stats = True
            norm.running_mean, norm.running_var = mean, variance
        for module, training in zip(modules, before, strict=True):
            set_training(module, training)


# In a small network, torch's own ``modules()``, ``train()`` and attribute access run so much Python, per module and
# twice a step, that changing the form costs as much as the scores. The functions below do the same with less.


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
    """``network.train(training)``, where only a module that overrides the method has it called."""
    waiting = [network]
    while waiting:
        module = waiting.pop()
        if getattr(module.train, "__func__", None) is nn.Module.train:
            set_training(module, training)
            waiting += [child for child in module._modules.values() if child is not None]
        else:
            module.train(training)


def set_training(module: nn.Module, training: bool) -> None:
    """``module.training = training``, without nn.Module's own search for a parameter of that name."""
    if type(module).__setattr__ is nn.Module.__setattr__ and "training" in module.__dict__:
        module.__dict__["training"] = training
    else:  # scripted and compiled modules keep it elsewhere
        module.training = training
