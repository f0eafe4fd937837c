"""Adversarial targets: of all wrong targets the one that hurts a clean model most."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, choose_rows, replace_rows, serves, task_of
from gradsieve.corruptions.reference import class_outputs, target_outputs


@serves("classification", "regression")
def adversarial(
    inputs: Tensor,
    targets: Tensor,
    rate: float,
    generator: torch.Generator,
    classes: int | None = None,
    outputs: Tensor | None = None,
) -> Corrupted:
    """Give the chosen rows the wrong target that maximises the loss of a clean model.

    That is the least probable wrong class, or (regression) for each output the end of its observed range
    that is farther from the prediction. The clean model is a small reference fitted here, or another one
    by its ``outputs``: logits of (N, K) or predictions of (N, q).
    """
    rows = choose_rows(rate, len(targets), generator)
    if task_of(targets) == "classification":
        outputs = class_outputs(inputs, targets, generator, classes, outputs)[rows]
        wrong = outputs.scatter(1, targets[rows, None].long(), torch.inf)  # excludes the row's own class
        return replace_rows(targets, rows, wrong.argmin(1))
    outputs = target_outputs(inputs, targets, generator, outputs)[rows]
    low, high = targets.aminmax(dim=0)  # (q,) each
    farther = torch.where(high - outputs > outputs - low, high, low)
    # A row whose targets are all at the farther end already would not change: it gets the other ends.
    same = (farther == targets[rows]).all(1, keepdim=True)
    return replace_rows(targets, rows, torch.where(same, torch.where(farther == high, low, high), farther))
