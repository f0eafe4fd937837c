"""Instance-dependent label noise: the rows that are hard to tell get the label they look like."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.corruptions.corruption import Corrupted, replace_rows, serves
from gradsieve.corruptions.reference import class_outputs
from gradsieve.counts import part


@serves("classification")
def instance(
    inputs: Tensor,
    targets: Tensor,
    rate: float,
    generator: torch.Generator,
    classes: int | None = None,
    outputs: Tensor | None = None,
) -> Corrupted:
    """Flip the rows a clean model is least sure of, to the most probable wrong class.

    The clean model is a small reference fitted here, or another one by its ``outputs``, logits of (N, K).
    Sureness is the margin between its two largest outputs: for logits, the log-odds of the two classes.
    """
    outputs = class_outputs(inputs, targets, generator, classes, outputs)  # (N, K)
    best = outputs.topk(2, dim=1).values
    rows = (best[:, 0] - best[:, 1]).argsort(stable=True)[: part(rate, len(targets))]  # ties by row index
    wrong = outputs[rows].scatter(1, targets[rows, None].long(), -torch.inf)  # excludes the row's own class
    return replace_rows(targets, rows, wrong.argmax(1))
