"""Workloads to time steps on: a network, a batch of random rows, and an optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradsieve import seeds
from gradsieve.arguments import argument
from gradsieve.data import DataSet, Rows, Task
from gradsieve.data.validate import check_count
from gradsieve.errors import InputError
from gradsieve.method import Method
from gradsieve.models.build import build
from gradsieve.registry import unknown
from gradsieve.scores.loss import Criterion
from gradsieve.training.engines import CapturedEngine
from gradsieve.training.feed import Feed
from gradsieve.training.ledger import Ledger
from gradsieve.training.run import Compile, Run
from gradsieve.training.setting import CRITERIA, Setting, fingerprint, make_optimizer, place
from gradsieve.training.state import State
from gradsieve.training.tally import Tally


@dataclass(frozen=True)
class Workload:
    """A network and a batch to time steps on."""

    model: str
    input_shape: tuple[int, ...]
    outputs: int
    batch_size: int
    task: Task = "classification"
    model_options: tuple[tuple[str, Any], ...] = ()

    @property
    def criterion(self) -> Criterion:
        return CRITERIA[self.task]


WORKLOADS = {
    "cnn9": Workload("cnn9", (3, 32, 32), 10, 128),
    "cnn9-group": Workload("cnn9", (3, 32, 32), 10, 128, model_options=(("norm", "group"),)),
    "cnn9-quarter": Workload("cnn9", (3, 32, 32), 10, 64, model_options=(("width", 0.25),)),
    "cnn9-quarter-group": Workload("cnn9", (3, 32, 32), 10, 64, model_options=(("width", 0.25), ("norm", "group"))),
    "mlp": Workload("mlp", (512,), 10, 512, "regression"),
}


class Setup(NamedTuple):
    """A workload on its device, ready for steps."""

    inputs: Tensor
    targets: Tensor
    networks: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]


def find_workload(name: str, batch_size: int | None = None) -> Workload:
    """A workload of the table, with its own batch size or another."""
    if name not in WORKLOADS:
        raise InputError(unknown("workload", name, WORKLOADS))
    if batch_size is None:
        return WORKLOADS[name]
    check_count(argument("batch_size"), batch_size, 2)
    return replace(WORKLOADS[name], batch_size=batch_size)


def set_up(workload: Workload, device: torch.device, networks: int = 1) -> Setup:
    """The batch and networks of a workload, the same every time."""
    draw = seeds.generator(0, "bench")
    inputs = torch.randn(workload.batch_size, *workload.input_shape, generator=draw).to(device)
    if workload.task == "classification":
        targets = torch.randint(workload.outputs, (workload.batch_size,), generator=draw).to(device)
    else:
        targets = torch.randn(workload.batch_size, workload.outputs, generator=draw).to(device)
    if device.type == "cuda" and inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    made = []
    for number in range(networks):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seeds.derive(0, "bench", number))
            network = build(workload.model, workload.input_shape, workload.outputs, dict(workload.model_options))
        made.append(place(network, device, "auto"))
    return Setup(inputs, targets, made, [make_optimizer(network, 1e-3) for network in made])


DATA_ROWS = 2048  # training rows of a captured engine, unless two batches are more


def make_captured(rule: Method, workload: Workload, setup: Setup, drop_rate: float, compile: Compile) -> CapturedEngine:
    """The engine of a run on random rows, with the networks of ``setup``."""
    device, batches = setup.inputs.device, max(2, DATA_ROWS // workload.batch_size)
    run = Run(
        data="digits",  # only a name, which a run needs: the rows are random
        method="standard",
        model=workload.model,
        epochs=1,
        batch_size=workload.batch_size,
        learning_rate=1e-3,
        compile=compile,
    )
    inputs, targets = (torch.cat([values.cpu()] * batches) for values in (setup.inputs, setup.targets))
    train = Rows(inputs.contiguous(), targets)
    data = DataSet(workload.task, train, train, tuple(map(str, range(workload.outputs))))
    is_corrupted = torch.zeros(len(targets), dtype=torch.bool)
    setting = Setting(run, data, targets, is_corrupted, rule, device, [drop_rate], batches)
    ledger = Ledger.empty(len(targets), device)
    tally = Tally.empty(workload.outputs if workload.task == "classification" else 0, device)
    state = State(setup.networks, setup.optimizers, ledger, tally, fingerprint(setting.data.train))
    return CapturedEngine(setting, state, Feed(train, device))
