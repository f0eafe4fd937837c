"""SPL, self-paced learning (Kumar et al. 2010), also called the trimmed loss: drop the rows with the largest loss.

1. Compute each row's loss.
2. Drop the rows with the largest loss.
3. Update on the mean loss of the rest.

With ``level="data"``, step 2 takes the whole data set once per epoch instead of each batch. Under squared error, and
with two classes, SPL keeps the same rows as PRL(L).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from gradsieve.method import Method, Scores, Selection
from gradsieve.scores.loss import as_scores


@dataclass(frozen=True)
class SPL(Method):
    """Keep the rows with the smallest loss, of each batch or (``level="data"``) of the whole set once per epoch."""

    level: Literal["batch", "data"] = "batch"

    drops_rows: ClassVar[bool] = True

    def scores(self, outputs: Tensor, targets: Tensor) -> Scores:
        return Scores(as_scores(self.losses(outputs, targets)))

    def epoch_rows(
        self,
        outputs: Callable[[nn.Module], Tensor],
        networks: Sequence[nn.Module],
        targets: Tensor,
        drop_rate: float,
    ) -> Tensor | None:
        if self.level == "batch":
            return None
        return self.select(self.scores(outputs(networks[0]), targets), targets, drop_rate)

    def step(self, networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, drop_rate: float) -> list[Selection]:
        # With level="data", the epoch's rows are trimmed already.
        return super().step(networks, inputs, targets, drop_rate if self.level == "batch" else 0.0)
