"""Normclip: plain training with the norm of the whole gradient clipped.

1. Take the gradient of the mean loss of all rows.
2. If its norm is larger than ``norm``, scale it down to ``norm``.
3. Update with it.
"""

from dataclasses import dataclass

from torch import nn

from gradsieve.method import Method, Positive


@dataclass(frozen=True)
class NormClip(Method):
    """Clip the norm of the batch gradient: this limits the sum of all rows, not any single one."""

    norm: Positive = 10.0  # the best of 0.1, 1, 5 and 10 on clean digits and landmarks

    def finish(self, network: nn.Module) -> None:
        nn.utils.clip_grad_norm_(network.parameters(), self.norm)
