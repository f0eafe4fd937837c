"""Predictions and test metrics of networks, outside of training steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsieve.data import Task
from gradsieve.metrics import METRICS
from gradsieve.ranks import gather_rows, own_part
from gradsieve.scores.form import scoring_form
from gradsieve.training.feed import as_float

BATCH = 1000  # rows per forward pass; divides the 10,000 test images of CIFAR evenly


@torch.no_grad()
def predict(network: nn.Module, inputs: Tensor, device: torch.device) -> Tensor:
    """Outputs for all rows, (N, ...) float32, in eval mode."""
    with scoring_form(network, "eval"):
        chunks = [
            network(as_float(chunk.to(device), channels_last=device.type == "cuda")).float()
            for chunk in inputs.split(BATCH)
        ]
    return torch.cat(chunks)


def common_answer(task: Task, outputs: Tensor) -> NDArray[np.float64]:
    """The mean answer of M networks with ``outputs`` (M, N, k): probabilities (N, K) of classes, or outputs (N, q)."""
    answers = outputs.softmax(-1) if task == "classification" else outputs
    return answers.double().mean(0).cpu().numpy()


def test_metric(task: Task, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor) -> list[float]:
    """Accuracy or R2 of each network on all of the test rows."""
    _, metric = METRICS[task]
    return [float(metric(predict_together(network, inputs, targets.device), targets)) for network in networks]


def predict_together(network: nn.Module, inputs: Tensor, device: torch.device) -> Tensor:
    """Outputs for all rows; each rank computes a part, and all get the whole."""
    (outputs,) = gather_rows([predict(network, inputs[own_part(len(inputs))], device)]).values
    return outputs
