"""PRL(G): drop the rows with the largest gradient over all parameters. Liu et al. 2021, Algorithm 1.

1. Take each row's gradient over all parameters.
2. Drop the rows for which its norm is largest.
3. Update with the mean gradient of the rest.

It guards against corrupted inputs too. Use it for regression, and for networks that do not mix rows: there the pass of
step 1 also gives the gradient of step 3. With BatchNorm, the norms are taken in eval mode, and step 3 is a new pass
over the kept rows, because training on the sum of their shares of the batch gradient does not work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from gradsieve.errors import InputError
from gradsieve.method import Look, Method, Scores, require_own_rows
from gradsieve.scores.form import scoring_form
from gradsieve.scores.row_by_row import mixes_rows
from gradsieve.scores.row_gradients import row_pass, store_gradient


@dataclass(frozen=True)
class PRLG(Method):
    """Keep the rows whose gradient over all parameters is smallest."""

    # auto: "index" if the network does not mix rows, else "reforward"
    passes: Literal["auto", "index", "reforward"] = "auto"  # pyright: ignore[reportIncompatibleVariableOverride]

    drops_rows: ClassVar[bool] = True
    paper_passes = "auto"  # Algorithm 1 averages the same gradients that it ranks

    def require(self, network: nn.Module, rows: int, device: torch.device) -> None:
        self.passes_of([network])
        require_own_rows("prl-g", network, self.scoring)

    def passes_of(self, networks: Sequence[nn.Module]) -> str:
        mixes = any(map(mixes_rows, networks))
        if mixes and self.passes == "index":
            raise InputError(
                "passes is 'index', but the network's BatchNorm mixes rows: the sum of the kept rows' shares is no "
                "gradient and does not train. Leave passes out, or use a network without BatchNorm (norm=group)."
            )
        return ("reforward" if mixes else "index") if self.passes == "auto" else self.passes

    def look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        with scoring_form(network, self.scoring):
            rows = row_pass(network, self.losses, inputs, targets)
            return Look(None, self.ranked(rows.norms(), rows.losses))

    def train_look(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Look:
        norms, rows = row_pass(network, self.losses, inputs, targets).measure()
        return Look(None, self.ranked(norms, rows.losses), row_pass=rows)

    def ranked(self, norms: Tensor, losses: Tensor) -> Scores:
        # A row with a NaN loss can have a gradient of 0 (the derivative of abs at NaN), and would be kept first.
        return Scores(norms.masked_fill(losses.isnan(), torch.nan))

    def learn(
        self, network: nn.Module, look: Look, inputs: Tensor, targets: Tensor, rows: Tensor, count: int
    ) -> Tensor:
        if look.row_pass is None:
            return super().learn(network, look, inputs, targets, rows, count)
        gradient = look.row_pass.gradient(rows)
        store_gradient(network, {name: total / count for name, total in gradient.items()})
        return look.row_pass.losses[rows].sum() / count
