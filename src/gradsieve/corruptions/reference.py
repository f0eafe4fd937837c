"""The clean model behind the instance and adversarial corruptions: ridge regression on random features.

It has a closed form and a seed, so the same data and generator give the same corruption, in seconds and without a
training loop. It need not be strong, only know which rows are hard and which classes are similar. Otherwise, the
corruptions accept the outputs of another model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve.corruptions.corruption import count_classes, flat
from gradsieve.errors import InputError

FEATURES = 512  # random features, at most
RIDGE = 1e-3  # the ridge penalty per row
CHUNK = 4096  # rows that are converted to float32 at a time, to save memory: 50 MB of CIFAR


def class_outputs(
    inputs: Tensor, targets: Tensor, generator: torch.Generator, classes: int | None, outputs: Tensor | None
) -> Tensor:
    """(N, K) outputs of a clean classifier: ``outputs`` if given, else the reference model's."""
    if outputs is not None:
        outputs = _given(outputs, len(targets), classes)
        count_classes(targets, outputs.shape[1])
        return outputs
    indicators = F.one_hot(targets.long(), count_classes(targets, classes)).float()
    return fit_predict(inputs, indicators, generator)


def target_outputs(inputs: Tensor, targets: Tensor, generator: torch.Generator, outputs: Tensor | None) -> Tensor:
    """(N, q) predictions of a clean regression: ``outputs`` if given, else the reference model's."""
    if outputs is not None:
        return _given(outputs, len(targets), targets.shape[1])
    return fit_predict(inputs, targets.float(), generator)


def fit_predict(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    """Predictions (N, q) of a ridge regression on random features, for the rows that it is fitted on."""
    features = random_features(inputs, generator)  # (N, D)
    centre = targets.mean(0)
    gram = (features.T @ features).double()
    gram.diagonal().add_(RIDGE * len(features))
    weights = torch.linalg.solve(gram, (features.T @ (targets - centre)).double())  # (D, q)
    return features @ weights.float() + centre


def random_features(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """(N, D) centred rectified random projections of the standardised inputs."""
    mean, std = _moments(inputs)
    width = min(FEATURES, len(inputs))  # more features than rows would only cost time
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
    """``outputs``, checked to have the shape for these rows and to be finite."""
    if outputs.ndim != 2 or len(outputs) != rows or outputs.shape[1] != (columns or outputs.shape[1]):
        wanted = f"({rows}, {columns or 'classes'})"
        raise InputError(f"outputs has the shape {tuple(outputs.shape)}, but the clean model's are {wanted}.")
    if not outputs.isfinite().all():
        row = int((~outputs.isfinite()).any(1).nonzero()[0])
        raise InputError(f"outputs[{row}] is not finite: {outputs[row].tolist()}.")
    return outputs.detach().cpu()
