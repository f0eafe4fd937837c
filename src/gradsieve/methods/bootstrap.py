"""Bootstrapping (Reed et al. 2014): train on a blend of the given label and the network's own opinion."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gradsieve.data.dataset import Task
from gradsieve.method import Method, Share
from gradsieve.scores.loss import row_losses


@dataclass(frozen=True)
class Bootstrap(Method):
    """Blend each given label with the predicted class (hard) or the predicted probabilities (soft)."""

    form: Literal["hard", "soft"] = "hard"
    trust: Share = 0.8  # the share of the given label

    tasks: ClassVar[tuple[Task, ...]] = ("classification",)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        detached = outputs.detach().float()
        opinion = detached.argmax(1) if self.form == "hard" else detached.softmax(1)
        given = row_losses(self.criterion, outputs, targets)
        return self.trust * given + (1 - self.trust) * row_losses(self.criterion, outputs, opinion)
