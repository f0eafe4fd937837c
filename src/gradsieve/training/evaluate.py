"""What networks say about rows that they are not trained on at this moment."""

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

BATCH = 1000  # rows a forward; test images of CIFAR come out even


@torch.no_grad()
def predict(network: nn.Module, inputs: Tensor, device: torch.device) -> Tensor:
    """Outputs for all rows, (N, ...) float32, in eval form."""
    with scoring_form(network, "eval"):
        chunks = [
            network(as_float(chunk.to(device), channels_last=device.type == "cuda")).float()
            for chunk in inputs.split(BATCH)
        ]
    return torch.cat(chunks)


def common_answer(task: Task, outputs: Tensor) -> NDArray[np.float64]:
    """What networks say together by their ``outputs`` (M, N, k): their mean probabilities (N, K), or outputs (N, q)."""
    answers = outputs.softmax(-1) if task == "classification" else outputs
    return answers.double().mean(0).cpu().numpy()


def test_metric(task: Task, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor) -> list[float]:
    """Accuracy or R2 of each network on all of the test rows."""
    _, metric = METRICS[task]
    return [float(metric(predict_together(network, inputs, targets.device), targets)) for network in networks]


def predict_together(network: nn.Module, inputs: Tensor, device: torch.device) -> Tensor:
    """Outputs for all rows, of which each rank finds its part."""
    (outputs,) = gather_rows([predict(network, inputs[own_part(len(inputs))], device)]).values
    return outputs
