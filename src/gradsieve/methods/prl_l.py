"""PRL(L): drop the rows with the largest gradient at the loss layer. Liu et al. 2021, Algorithm 2.

1. Take each row's gradient at the loss layer, d loss / d output.
2. Drop the rows for which its norm is largest.
3. Update on the mean loss of the rest.

For squared error and cross-entropy this gradient is prediction - target up to a constant, so step 1 needs no backward
pass. No row that is kept, however corrupted, can bend the mean far.
"""

from typing import ClassVar

from torch import Tensor

from gradsieve.method import Method, Scores
from gradsieve.scores.loss_gradient import loss_gradient_norm, ranks_as_loss


class PRLL(Method):
    """Keep the rows whose gradient at the loss layer, d loss / d output, is smallest."""

    drops_rows: ClassVar[bool] = True
    paper_passes = "reforward"

    def scores(self, outputs: Tensor, targets: Tensor) -> Scores:
        scores = loss_gradient_norm(self.criterion, outputs, targets)
        if ranks_as_loss(self.criterion):
            return Scores(scores)
        # L1 and Huber gradients saturate, and those of confident wrong classes nearly do: the loss breaks such ties.
        return Scores(scores, ties=self.losses(outputs, targets))
