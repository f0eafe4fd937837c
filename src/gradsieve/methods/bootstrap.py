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
from gradsieve.scores.loss import labels_that_count, row_losses


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
        return trust * given + (1 - trust) * self.against(opinion, outputs, targets)

    def against(self, opinion: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row against the network's opinion, of those labels alone that count against the given."""
        counted = labels_that_count(self.criterion, targets)
        if counted is None:
            return row_losses(self.criterion, outputs, opinion)
        if self.form == "hard":
            return row_losses(self.criterion, outputs, opinion.where(counted, targets))
        places = [values.movedim(1, -1).flatten(0, -2) for values in (outputs, opinion)]  # (labels, C) each
        losses = row_losses(self.criterion, *places).view_as(targets).where(counted, 0.0)
        total, count = (values.unsqueeze(1).flatten(1).sum(1) for values in (losses, counted))  # of a row's labels
        return total / count.clamp(min=1)
