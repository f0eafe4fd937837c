"""Min-SGD (Shah et al. 2020): of several rows, only the one with the smallest loss makes the update.

1. Compute each row's loss.
2. Keep the row with the smallest loss of the batch or, with ``group=n``, of each n rows in it.
3. Update on the mean loss of what is kept.

One row per step learns little: use small batches, or small groups.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve import ranks
from gradsieve.method import Count, Method, Passes, Scores
from gradsieve.scores.loss import as_scores
from gradsieve.selection import keep_first


@dataclass(frozen=True)
class MinSGD(Method):
    """Keep only the row with the smallest loss of each batch, or of each ``group`` rows in it."""

    passes: Passes = "index"  # one row alone has no statistics for BatchNorm
    group: Count = 0  # rows per group; 0: the whole batch

    drops_rows: ClassVar[bool] = True

    def scores(self, outputs: Tensor, targets: Tensor) -> Scores:
        return Scores(as_scores(self.losses(outputs, targets)))

    def drops(self, drop_rate: float, rows: int) -> bool:
        return rows > 1  # whatever the rate

    def select(self, scores: Scores | None, targets: Tensor, drop_rate: float) -> Tensor:
        assert scores is not None
        if not self.group:
            return keep_first(scores.values, 1)
        everyone = ranks.gather_rows([scores.values])  # a group may span two ranks
        (values,) = everyone.values
        padded = F.pad(values.nan_to_num(torch.inf), (0, -len(values) % self.group), value=torch.inf)
        best = padded.view(-1, self.group).argsort(dim=1, stable=True)[:, 0]  # (groups,)
        return everyone.kept_here(best + self.group * torch.arange(len(best), device=best.device))
