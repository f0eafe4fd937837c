"""The predictions of fitted networks, and how far given targets are from them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsieve.data import Rows, Task
from gradsieve.method import Method
from gradsieve.methods.prl_l import PRLL
from gradsieve.scores.form import scoring_form
from gradsieve.scores.loss_gradient import loss_gradient_norm
from gradsieve.training.evaluate import common_answer
from gradsieve.training.feed import as_float
from gradsieve.training.ledger import Ledger
from gradsieve.training.setting import choose_device

PREDICT_ROWS = 4096  # rows in a forward pass


@torch.no_grad()
def answers(network: nn.Module, inputs: Tensor, device: torch.device) -> Tensor:
    """A network's outputs for all rows, in eval form and its own precision; in host memory."""
    precision = next(network.parameters()).dtype
    with scoring_form(network, "eval"):
        chunks = [network(as_float(chunk.to(device)).to(precision)).cpu() for chunk in inputs.split(PREDICT_ROWS)]
    return torch.cat(chunks)


def row_scores(
    method: Method, networks: Sequence[nn.Module], rows: Rows, order: Tensor, ledger: Ledger, device: torch.device
) -> Tensor:
    """(N,) float64: each row's mean score over the run.

    A row that no step has scored (held out, or the method has no scores) has its final loss-layer gradient instead,
    scaled to the others' scores. It is computed in ``order``, because its last bits may depend on a row's place.
    """
    scored = ledger.scored > 0
    if bool(scored.all()):
        return ledger.mean_score.double()
    final = torch.empty(len(order), dtype=torch.float64)
    final[order] = last_scores(method, networks, rows.inputs[order], rows.targets[order], device)
    if not bool(scored.any()):
        return final
    mean = ledger.mean_score.double()
    return mean.where(scored, final * scale_of_last(method, mean[scored], final[scored]))


def last_scores(
    method: Method, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, device: torch.device
) -> Tensor:
    """(N,) float64: the loss-layer gradient of rows, mean over the networks as they are now."""
    outputs = (answers(network, inputs, device).float() for network in networks)
    return torch.stack([loss_gradient_norm(method.criterion, each, targets) for each in outputs]).double().mean(0)


def scale_of_last(method: Method, mean: Tensor, last: Tensor) -> float:
    """The factor from final loss-layer gradients to a method's mean scores, by rows that have both.

    It is 1 for methods whose scores are loss-layer gradients: they have one scale, which for classes is bounded.
    """
    return 1.0 if isinstance(method, PRLL) else float(mean.median() / last.median().clamp(min=1e-12))


def mean_outputs(
    networks: Sequence[nn.Module], inputs: NDArray, task: Task, device: str = "cpu", exact: bool = False
) -> NDArray[np.float64]:
    """The networks' joint predictions: mean probabilities (N, K), or mean outputs (N, q).

    ``exact`` computes in double precision, so that a row's prediction does not depend on the rows beside it.
    """
    where, tensor = choose_device(device), torch.from_numpy(inputs)
    if exact or where.type != "cpu":
        dtype = torch.float64 if exact else torch.float32
        networks = [copy.deepcopy(network).to(where, dtype) for network in networks]
    return common_answer(task, torch.stack([answers(network, tensor, where).double() for network in networks]))
