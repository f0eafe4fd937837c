"""Gradsieve: train through wrong labels and targets.

In your own loop, swap the criterion: ``RobustLoss(criterion, drop_rate=0.3)``. For a step with a second pass over the
kept rows, use ``robust_step``; for scikit-learn, ``RobustClassifier`` and ``RobustRegressor``; for our training loop,
``make_run`` and ``train``.

The names below are imported when they are first used, so that the command answers before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradsieve.choosing.estimate import estimate_rate
    from gradsieve.choosing.pick import RatePick
    from gradsieve.choosing.scorer import noisy_score, rank_models
    from gradsieve.choosing.vote import Choice, choose
    from gradsieve.corruptions import CORRUPTIONS
    from gradsieve.data import DATASETS
    from gradsieve.dropin.find_rate import find_drop_rate
    from gradsieve.dropin.robust_loss import RobustLoss
    from gradsieve.dropin.robust_step import robust_step
    from gradsieve.errors import GradsieveError
    from gradsieve.estimators.estimator import RobustClassifier, RobustRegressor
    from gradsieve.method import Method, Selection
    from gradsieve.methods import METHODS
    from gradsieve.models import MODELS
    from gradsieve.scores.loss import row_losses
    from gradsieve.scores.loss_gradient import loss_gradient_norm
    from gradsieve.scores.row_gradients import row_gradient_norms
    from gradsieve.selection import keep_smallest
    from gradsieve.training.loop import train
    from gradsieve.training.result import Result, load_result
    from gradsieve.training.run import Run, make_run

from gradsieve.version import __version__ as __version__  # re-exported

_PLACES = {
    "CORRUPTIONS": "gradsieve.corruptions",
    "Choice": "gradsieve.choosing.vote",
    "DATASETS": "gradsieve.data",
    "GradsieveError": "gradsieve.errors",
    "METHODS": "gradsieve.methods",
    "MODELS": "gradsieve.models",
    "Method": "gradsieve.method",
    "RatePick": "gradsieve.choosing.pick",
    "Result": "gradsieve.training.result",
    "RobustLoss": "gradsieve.dropin.robust_loss",
    "RobustClassifier": "gradsieve.estimators.estimator",
    "RobustRegressor": "gradsieve.estimators.estimator",
    "Run": "gradsieve.training.run",
    "Selection": "gradsieve.method",
    "choose": "gradsieve.choosing.vote",
    "estimate_rate": "gradsieve.choosing.estimate",
    "find_drop_rate": "gradsieve.dropin.find_rate",
    "keep_smallest": "gradsieve.selection",
    "load_result": "gradsieve.training.result",
    "loss_gradient_norm": "gradsieve.scores.loss_gradient",
    "make_run": "gradsieve.training.run",
    "noisy_score": "gradsieve.choosing.scorer",
    "rank_models": "gradsieve.choosing.scorer",
    "robust_step": "gradsieve.dropin.robust_step",
    "row_gradient_norms": "gradsieve.scores.row_gradients",
    "row_losses": "gradsieve.scores.loss",
    "train": "gradsieve.training.loop",
}

__all__ = [
    "CORRUPTIONS",
    "Choice",
    "DATASETS",
    "GradsieveError",
    "METHODS",
    "MODELS",
    "Method",
    "RatePick",
    "Result",
    "RobustLoss",
    "RobustClassifier",
    "RobustRegressor",
    "Run",
    "Selection",
    "choose",
    "estimate_rate",
    "find_drop_rate",
    "keep_smallest",
    "load_result",
    "loss_gradient_norm",
    "make_run",
    "noisy_score",
    "rank_models",
    "robust_step",
    "row_gradient_norms",
    "row_losses",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'gradsieve' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
