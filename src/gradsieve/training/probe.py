"""The paper's bound during a run: the error of the gradient on some fixed rows, beside the bound on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradsieve import seeds
from gradsieve.method import Method
from gradsieve.theory import gradient_error, probe_rows
from gradsieve.training.feed import as_float
from gradsieve.training.run import most_dropped
from gradsieve.training.setting import Setting

ROWS = 64  # few, because the Jacobian of every row is computed; the same in every epoch


@dataclass(frozen=True)
class Probe:
    """Training rows with their clean and given targets; the share of corrupted ones is at most the corruption rate."""

    method: Method
    drop_rate: float
    inputs: Tensor
    targets: Tensor
    clean_targets: Tensor
    is_corrupted: Tensor

    @classmethod
    def of(cls, setting: Setting) -> Probe:
        """A probe drawn from a run's training rows."""
        run = setting.run
        rows = probe_rows(setting.is_corrupted, ROWS, run.rate, seeds.generator(run.seed, "probe"))
        train, device = setting.data.train, setting.device
        return cls(
            setting.method,
            most_dropped(run),
            as_float(train.inputs[rows].to(device)),
            train.targets[rows].to(device),
            setting.clean_targets[rows].to(device),
            setting.is_corrupted[rows].to(device),
        )

    def measure(self, network: nn.Module) -> dict[str, Any]:
        """The error of the mean gradient over the rows that the method would keep at its full drop rate."""
        device = self.inputs.device
        # Dropout while scoring must not draw from the run's random stream: with or without a probe, same bits.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            scores = self.method.look(network, self.inputs, self.targets).scores
        kept = self.method.select(scores, self.targets, self.drop_rate)
        return gradient_error(
            network, self.method.losses, self.inputs, self.clean_targets, self.targets, self.is_corrupted, kept
        )._asdict()
