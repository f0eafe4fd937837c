"""Huber: plain training with Huber's loss (Huber 1964).

The loss is the squared error up to ``delta`` and the absolute error beyond. Update on its mean over all rows.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from gradsieve.data.dataset import Task
from gradsieve.method import Method, Positive
from gradsieve.scores.loss import row_losses


@dataclass(frozen=True)
class Huber(Method):
    """Squared error up to ``delta`` and absolute error beyond, so that far targets pull with constant force."""

    delta: Positive = 1.0  # on standardised targets

    tasks: ClassVar[tuple[Task, ...]] = ("regression",)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return row_losses(partial(F.huber_loss, delta=self.delta), outputs, targets)
