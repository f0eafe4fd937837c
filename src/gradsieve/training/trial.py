"""Trial passes of one row, before the first step: whether a network can be trained on such rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradsieve.arguments import argument
from gradsieve.data import Task
from gradsieve.errors import InputError
from gradsieve.method import Scores
from gradsieve.scores.form import Scoring, scoring_form
from gradsieve.training.feed import as_float
from gradsieve.training.setting import Setting


def require_outputs(network: nn.Module, row: Tensor, task: Task, outputs: int, *, name: str, row_name: str) -> None:
    """A network must be trainable, and answer a ``row`` (1, ...) of inputs with a number for each class or target."""
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError(f"{name} has no trainable parameter.")
    try:
        answer = answer_to(network, row, "eval")
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name} cannot read {row_name}, a tensor of shape {tuple(row.shape)} ({reason}).") from error
    shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
    if shape != (1, outputs):
        each = "class" if task == "classification" else "target"
        raise InputError(
            f"{name} answers {row_name} with {shape}, but {task} needs a tensor of (1, {outputs}): one number per "
            f"{each}."
        )


def require_statistics(setting: Setting, network: nn.Module) -> None:
    """BatchNorm may fail on a single row, which has no variance: if a training pass can be that small, try one."""
    run, method, train = setting.run, setting.method, setting.data.train
    rows = min(run.batch_size, len(train))
    if method.drops_rows and method.passes == "reforward":
        rows = len(method.select(Scores(torch.zeros(rows)), train.targets[:rows], max(setting.rates)))
    if rows > 1:
        return
    try:
        answer_to(network, train.inputs[:1].to(setting.device), "train")
    except ValueError as error:
        raise InputError(
            f"{argument('batch_size', run.batch_size)} and {argument('drop_rate', run.drop_rate)} leave passes of one "
            f"row, which the BatchNorm of {run.model} cannot train on. Use larger batches, or "
            f"{argument('model_options', {'norm': 'group'})}."
        ) from error


def answer_to(network: nn.Module, row: Tensor, form: Scoring) -> Any:
    """A network's output for a row, without a change of its statistics or of the random state."""
    devices = [row.device] if row.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices), scoring_form(network, form):
        return network(as_float(row))
