"""PRL(G): drop the rows whose gradient over all parameters is largest.

Liu et al. 2021, Algorithm 1. It guards against corrupted inputs too, and belongs to regression and to networks
whose rows do not mix. With BatchNorm the norms are taken in eval form and the update is a new pass over the kept
rows: the sum of their shares of the batch gradient does not train.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from gradsieve.method import Look, Method, Passes, Scores
from gradsieve.scores.form import scoring_form
from gradsieve.scores.row_gradients import row_pass


@dataclass(frozen=True)
class PRLG(Method):
    """Keep the rows whose gradient over all parameters is smallest."""

    passes: Literal["reforward"] = "reforward"

    drops_rows: ClassVar[bool] = True
    paper_passes: ClassVar[Passes] = "reforward"

    def look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        with scoring_form(network, self.scoring):
            rows = row_pass(network, self.losses, inputs, targets)
            # The derivative of abs is 0 at NaN, which would put a broken row before all others.
            return Look(None, Scores(rows.norms().masked_fill(rows.losses.isnan(), torch.nan)))
