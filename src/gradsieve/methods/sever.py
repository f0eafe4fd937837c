"""SEVER (Diakonikolas et al. 2019) on mini-batches: a spectral filter on the rows' gradients.

1. Take each row's gradient over all parameters.
2. Find the direction in which the rows' gradients vary most.
3. Drop the rows whose gradient lies farthest along it.
4. Update on the mean loss of the rest.

This is the dimension-free estimator for general corruption with which the paper compares its bounds. The original
filters the whole set between two full optimizations; here each batch is filtered before its update.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.method import Look, Method, Scores, require_own_rows
from gradsieve.scores.form import scoring_form
from gradsieve.scores.memory import require_memory, row_gradient_bytes
from gradsieve.scores.row_gradients import row_pass
from gradsieve.scores.spectral import gradient_gram, spectral_scores


@dataclass(frozen=True)
class Sever(Method):
    """Keep the rows whose gradient lies least along the direction in which the rows' gradients vary most."""

    passes: Literal["reforward"] = "reforward"
    iterations: Annotated[int, lambda value: value >= 1, "a whole number from 1 up"] = 20  # of the power method

    drops_rows: ClassVar[bool] = True
    paper_passes = "reforward"

    def require(self, network: nn.Module, rows: int, device: torch.device) -> None:
        require_own_rows("sever", network, self.scoring)
        needed = 2 * row_gradient_bytes(network, rows) + 8 * rows * rows
        require_memory(f"sever: the gradients of {rows} rows for the largest parameter, and a copy", needed, device)

    def look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        with scoring_form(network, self.scoring):
            rows = row_pass(network, self.losses, inputs, targets)
            scores = spectral_scores(gradient_gram(rows), self.iterations)  # of all ranks' rows
            return Look(rows.outputs, Scores(scores[ranks.gather_rows([rows.losses]).own]))
