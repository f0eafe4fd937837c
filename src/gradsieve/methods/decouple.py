"""Decoupling (Malach and Shalev-Shwartz 2017): update two networks only where they disagree.

1. For the first ``ramp`` epochs, update both networks on all rows.
2. After that, update both on the rows for which they predict different classes.

Any drop rate above 0 switches step 2 on, whatever its value; at 0 both networks train plainly. How many rows disagree
is not known beforehand, so every step waits for the device. No other method does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gradsieve.data.dataset import Task
from gradsieve.method import Look, Method, class_logits
from gradsieve.scores.loss import labels_that_count


@dataclass(frozen=True)
class Decouple(Method):
    """Two networks train on all rows at first, then only on the rows whose class they disagree on."""

    # Few rows may be left, even one: a pass over them alone would have no statistics for BatchNorm.
    passes: Literal["index"] = "index"

    tasks: ClassVar[tuple[Task, ...]] = ("classification",)
    networks: ClassVar[int] = 2
    decides_on_host: ClassVar[bool] = True
    schedule: ClassVar[str] = "wait"  # the warm-up: at rate 0 all rows are used

    def choose(self, looks: Sequence[Look], targets: Tensor, drop_rate: float) -> list[Tensor]:
        if drop_rate == 0:
            return super().choose(looks, targets, drop_rate)
        outputs = [look.outputs for look in looks if look.outputs is not None]
        one, other = (class_logits("decouple", self.criterion, own).argmax(1) for own in outputs)
        differs, counted = one != other, labels_that_count(self.criterion, targets)
        if differs.dim() > 1:  # of a row's labels one is enough
            differs = (differs if counted is None else differs & counted).flatten(1).any(1)
        # How many rows these are cannot be known beforehand. None: no gradient, and the optimizer skips the step.
        disagreed = torch.nonzero(differs).squeeze(1)
        return [disagreed, disagreed]
