"""The clean model that instance and adversarial corruptions ask: ridge regression on random features.

Closed form and seeded, so the same data and generator give the same corruption, in seconds and without a
training loop. How strong it is matters little: it only has to know which rows are hard and which classes
are alike. Where that is not enough, the corruptions take the outputs of any other model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve.corruptions.corruption import count_classes, flat
from gradsieve.errors import InputError

FEATURES = 512
RIDGE = 1e-3  # of the number of rows
CHUNK = 4096  # rows as float32 at a time: 50 MB of CIFAR


def class_outputs(
    inputs: Tensor, targets: Tensor, generator: torch.Generator, classes: int | None, outputs: Tensor | None
) -> Tensor:
    """(N, K) outputs of a clean classifier: those given, or the reference's."""
    if outputs is not None:
        outputs = _given(outputs, len(targets), classes)
        count_classes(targets, outputs.shape[1])
        return outputs
    indicators = F.one_hot(targets.long(), count_classes(targets, classes)).float()
    return fit_predict(inputs, indicators, generator)


def target_outputs(inputs: Tensor, targets: Tensor, generator: torch.Generator, outputs: Tensor | None) -> Tensor:
    """(N, q) predictions of a clean regression: those given, or the reference's."""
    if outputs is not None:
        return _given(outputs, len(targets), targets.shape[1])
    return fit_predict(inputs, targets.float(), generator)


def fit_predict(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    """Predictions (N, q) of a ridge regression on random features, fitted on these very rows."""
    features = random_features(inputs, generator)  # (N, D)
    centre = targets.mean(0)
    gram = (features.T @ features).double()
    gram.diagonal().add_(RIDGE * len(features))
    weights = torch.linalg.solve(gram, (features.T @ (targets - centre)).double())  # (D, q)
    return features @ weights.float() + centre


def random_features(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """(N, D) centred rectified random projections of the standardised inputs."""
    mean, std = _moments(inputs)
    width = min(FEATURES, len(inputs))  # more than rows would only cost time
    projection = torch.randn(len(mean), width, generator=generator) / (std[:, None] * len(mean) ** 0.5)
    shift = torch.randn(width, generator=generator)
    features = [((flat(chunk) - mean) @ projection + shift).relu_() for chunk in inputs.split(CHUNK)]
    lifted = torch.cat(features)
    return lifted - lifted.mean(0)


def _moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (features,) of the flattened inputs, in chunks."""
    chunks = inputs.split(CHUNK)
    mean = torch.stack([flat(chunk).sum(0) for chunk in chunks]).sum(0) / len(inputs)
    square = torch.stack([((flat(chunk) - mean) ** 2).sum(0) for chunk in chunks]).sum(0) / len(inputs)
    std = square.sqrt()
    return mean, torch.where(std > 1e-6, std, 1.0)  # a constant feature stays 0


def _given(outputs: Tensor, rows: int, columns: int | None) -> Tensor:
    """``outputs`` if they can be the outputs for these rows."""
    if outputs.ndim != 2 or len(outputs) != rows or outputs.shape[1] != (columns or outputs.shape[1]):
        wanted = f"({rows}, {columns or 'classes'})"
        raise InputError(f"outputs has the shape {tuple(outputs.shape)}, but the clean model's are {wanted}.")
    if not outputs.isfinite().all():
        row = int((~outputs.isfinite()).any(1).nonzero()[0])
        raise InputError(f"outputs[{row}] is not finite: {outputs[row].tolist()}.")
    return outputs.detach().cpu()
