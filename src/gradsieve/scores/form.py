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
    modules = list(network.modules())
    before = [module.training for module in modules]
    norms = [module for module in modules if isinstance(module, _NormBase) and module.track_running_stats]
    statistics = [(norm.running_mean, norm.running_var) for norm in norms]
    network.train(form == "train")
    if form == "train":
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
            module.training = training
