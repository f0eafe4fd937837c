"""Ignormclip: clip each row's own gradient, then average.

1. Take each row's gradient over all parameters.
2. Scale those with a norm larger than ``norm`` down to ``norm``.
3. Update with their mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.method import Method, Positive, Selection, require_own_rows
from gradsieve.scores.form import scoring_form
from gradsieve.scores.row_gradients import row_gradient_norms


@dataclass(frozen=True)
class IgNormClip(Method):
    """Clip the norm of each row's gradient, then take the mean."""

    norm: Positive = 10.0  # the best of 0.1, 1, 5 and 10 on clean digits and landmarks

    def require(self, network: nn.Module, rows: int, device: torch.device) -> None:
        require_own_rows("ignormclip", network, self.scoring)

    def step(self, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, drop_rate: float) -> list[Selection]:
        (network,) = networks
        with scoring_form(network, self.scoring):
            norms = row_gradient_norms(network, self.losses, inputs, targets)
        # A clipped gradient is the gradient times a factor, so a weighted loss gives their mean in one backward.
        factors = (self.norm / norms).clamp(max=1.0)
        losses = self.losses(network(inputs), targets)
        rows = ranks.total(len(losses), losses.device)
        ((factors * losses).sum() / rows).backward()
        return [Selection(norms, torch.arange(len(targets), device=targets.device), losses.detach().sum() / rows)]
