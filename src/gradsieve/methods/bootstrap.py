"""Bootstrapping (Reed et al. 2014): train on a blend of the given label and the network's own prediction.

1. Compute each row's loss twice: against the given label, and against the predicted class (``form="hard"``) or the
   predicted probabilities (``form="soft"``).
2. Update on ``trust`` times the first plus ``1 - trust`` times the second.

Unless you set it, ``trust`` is 0.8 in the hard form, as the authors have it, and 0.95 in the soft one.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gradsieve.data.dataset import Task
from gradsieve.method import Method, OptionalShare, class_logits
from gradsieve.scores.loss import row_losses


@dataclass(frozen=True)
class Bootstrap(Method):
    """Blend each given label with the predicted class (hard) or the predicted probabilities (soft).

    ``trust`` is the weight of the given label: 0.8 in the hard form, as the authors have it, 0.95 in the soft one.
    """

    form: Literal["hard", "soft"] = "hard"
    trust: OptionalShare = None

    tasks: ClassVar[tuple[Task, ...]] = ("classification",)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # The soft opinion is not detached: its term is the entropy, whose gradient would be 0 for a constant opinion.
        logits = class_logits("bootstrap", self.criterion, outputs)
        opinion = logits.argmax(1) if self.form == "hard" else logits.float().softmax(1)
        trust = self.trust if self.trust is not None else {"hard": 0.8, "soft": 0.95}[self.form]
        given = row_losses(self.criterion, outputs, targets)
        return trust * given + (1 - trust) * row_losses(self.criterion, outputs, opinion)
