"""The state of a run: all that must be saved so that a killed run, resumed, ends with the same bits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradsieve.arguments import elsewhere
from gradsieve.errors import CheckpointError
from gradsieve.training.ledger import Ledger
from gradsieve.training.tally import Tally


@dataclass
class State:
    """Networks, optimizers, ledger, the epoch's tally, and how many epochs and steps are done."""

    networks: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    ledger: Ledger
    tally: Tally
    data_sha256: str  # of the training rows
    epoch: int = 1  # the current one, counted from 1
    step: int = 0  # steps of this epoch that are done
    epoch_rows: Tensor | None = None  # the rows of this epoch, if the method chose them at its start
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    test_sha256: str = ""  # of the test rows, if there are any
    kept: tuple[int, int] | None = None  # epoch and step of the last state saved in the folder
    clock: float = field(default_factory=time.monotonic)  # until when ``seconds`` are counted

    def weights(self) -> dict[str, Tensor]:
        return weights_of(self.networks)

    def buffers(self) -> dict[str, Tensor]:
        """Non-persistent buffers of the networks, which ``state_dict`` leaves out."""
        weights = self.weights()
        buffers = {
            f"network{number}.{name}": buffer
            for number, network in enumerate(self.networks)
            for name, buffer in network.named_buffers()
        }
        return {
            name: buffer
            for name, buffer in buffers.items()
            if name not in weights and buffer.layout == torch.strided  # safetensors supports no other layout
        }

    def is_finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        return bool(torch.stack([tensor.isfinite().all() for tensor in self.weights().values()]).all())

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is a tensor, by name."""
        tensors = {f"weights.{name}": tensor for name, tensor in self.weights().items()}
        tensors |= {f"buffers.{name}": tensor for name, tensor in self.buffers().items()}
        for number, optimizer in enumerate(self.optimizers):
            for parameter, values in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer{number}.{parameter}.{name}": value for name, value in values.items()}
        tensors |= {f"ledger.{name}": tensor for name, tensor in self.ledger.tensors().items()}
        tensors |= {f"tally.{name}": tensor for name, tensor in self.tally.tensors().items()}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.ledger.judged.is_cuda:
            tensors["rng.cuda"] = torch.cuda.get_rng_state()
        if self.epoch_rows is not None:
            tensors["epoch_rows"] = self.epoch_rows
        return tensors

    def elapsed(self) -> float:
        """Seconds of work until now, including those before a resume."""
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        return self.seconds

    @property
    def is_kept(self) -> bool:
        """Whether the folder has this state: nothing was trained since it was saved."""
        return self.kept == (self.epoch, self.step)

    def keep(self) -> None:
        self.kept = self.epoch, self.step

    def meta(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        names = ("data_sha256", "test_sha256", "epoch", "step", "history", "seconds")
        return {name: getattr(self, name) for name in names}

    def restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Take over a saved state."""
        for rows, name in (("training", "data_sha256"), ("test", "test_sha256")):
            if name in meta and meta[name] != getattr(self, name):  # older versions have no test_sha256
                raise CheckpointError(
                    f"The saved state was made with other {rows} rows: the data has changed since. "
                    f"{elsewhere('Put it back as it was')}"
                )
        load_weights(self.networks, under(tensors, "weights."))
        for number, (network, optimizer) in enumerate(zip(self.networks, self.optimizers, strict=True)):
            for name, tensor in under(tensors, f"buffers.network{number}.").items():
                buffer = network.get_buffer(name)
                buffer.data = tensor.to(buffer.device)  # not copy_(): it may have another size than at the start
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            values: dict[int, dict[str, Tensor]] = {}
            for name, tensor in under(tensors, f"optimizer{number}.").items():
                index, _, entry = name.partition(".")
                parameter = parameters[int(index)]
                if tensor.shape == parameter.shape:  # fused optimizers need the memory layout of the parameter
                    tensor = torch.empty_like(parameter.detach(), dtype=tensor.dtype).copy_(tensor)
                values.setdefault(int(index), {})[entry] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": values})
        for part, record in (("ledger.", self.ledger), ("tally.", self.tally)):
            for name, tensor in under(tensors, part).items():
                getattr(record, name).copy_(tensor)
        if "epoch_rows" in tensors:
            self.epoch_rows = tensors["epoch_rows"].to(self.ledger.judged.device)
        self.epoch, self.step = meta["epoch"], meta["step"]
        self.history, self.seconds = meta["history"], meta["seconds"]
        self.keep()
        torch.set_rng_state(tensors["rng.cpu"])
        if "rng.cuda" in tensors and self.ledger.judged.is_cuda:
            torch.cuda.set_rng_state(tensors["rng.cuda"])


def weights_of(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The weights of networks, by the names that they have in files."""
    return {
        f"network{number}.{name}": tensor
        for number, network in enumerate(networks)
        for name, tensor in network.state_dict().items()
    }


def load_weights(networks: Sequence[nn.Module], weights: dict[str, Tensor]) -> None:
    """Load weights by the names of `weights_of`."""
    for number, network in enumerate(networks):
        network.load_state_dict(under(weights, f"network{number}."))


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name begins with ``prefix``, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
