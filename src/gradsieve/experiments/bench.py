"""What robust training costs on this machine: a step of every method beside a plain one, in one interleaved run.

A step is scores, selection, forward, backward and update, without a run's book-keeping. The methods take turns, so
that whatever else the machine does meets all of them alike; a ratio is the median over turns of a method's time
over Standard's time in the same turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradsieve import seeds
from gradsieve.counts import check_rate
from gradsieve.data import Task
from gradsieve.errors import InputError
from gradsieve.method import make_method
from gradsieve.methods import METHODS
from gradsieve.models.build import build
from gradsieve.registry import unknown
from gradsieve.training.setting import CRITERIA, choose_device, make_optimizer, place

Step = Callable[[], None]
BASELINE = "standard"


@dataclass(frozen=True)
class Workload:
    """A network and a batch to time steps on."""

    model: str
    input_shape: tuple[int, ...]
    outputs: int
    batch_size: int
    task: Task = "classification"
    model_options: tuple[tuple[str, Any], ...] = ()


WORKLOADS = {
    "cnn9": Workload("cnn9", (3, 32, 32), 10, 128),
    "cnn9-quarter": Workload("cnn9", (3, 32, 32), 10, 64, model_options=(("width", 0.25),)),
    "cnn9-quarter-group": Workload("cnn9", (3, 32, 32), 10, 64, model_options=(("width", 0.25), ("norm", "group"))),
    "mlp": Workload("mlp", (512,), 10, 512, "regression"),
}


def make_step(workload: Workload, method: str, drop_rate: float, device: torch.device) -> Step:
    """One training step of a method on a fixed batch."""
    draw = seeds.generator(0, "bench")
    inputs = torch.randn(workload.batch_size, *workload.input_shape, generator=draw).to(device)
    if workload.task == "classification":
        targets = torch.randint(workload.outputs, (workload.batch_size,), generator=draw).to(device)
    else:
        targets = torch.randn(workload.batch_size, workload.outputs, generator=draw).to(device)
    if device.type == "cuda" and inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    rule = make_method(method, METHODS, CRITERIA[workload.task], workload.task, {})
    options = dict(workload.model_options)
    with torch.random.fork_rng(devices=[]):
        networks = [
            place(build(workload.model, workload.input_shape, workload.outputs, options), device, "auto")
            for _ in range(rule.networks)
        ]
    for network in networks:
        rule.require(network, workload.batch_size, device)
    optimizers = [make_optimizer(network, 1e-3) for network in networks]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        rule.step(networks, inputs, targets, drop_rate)
        for network, optimizer in zip(networks, optimizers, strict=True):
            rule.finish(network)
            optimizer.step()

    return step


def bench(
    workload: Workload,
    methods: Sequence[str] = (),
    *,
    drop_rate: float = 0.45,
    turns: int = 30,
    device: str = "auto",
) -> dict[str, Any]:
    """Milliseconds a step and the ratio to Standard for each method: {"device": ..., "methods": {name: ...}}."""
    check_rate("drop_rate", drop_rate)
    if turns < 3:
        raise InputError(f"turns is {turns}, but a median with its spread needs at least 3.")
    able = [name for name in METHODS if workload.task in METHODS[name].tasks]
    chosen = list(dict.fromkeys([BASELINE, *(methods or able)]))
    where = choose_device(device)
    steps = {name: make_step(workload, name, drop_rate, where) for name in chosen}
    for step in (*steps.values(), *steps.values()):  # warm: buffers, caches, algorithms
        step()
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(turns):
        for name, step in steps.items():
            seconds[name].append(timed(step, where))
    return {
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "drop_rate": drop_rate,
        "turns": turns,
        "methods": {name: summary(seconds[name], seconds[BASELINE]) for name in chosen},
    }


def timed(step: Step, device: torch.device) -> float:
    """Seconds of one step, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def summary(seconds: Sequence[float], baseline: Sequence[float]) -> dict[str, float]:
    """The median step in milliseconds, the median ratio to the baseline's step, and that ratio's quartiles."""
    ratios = [own / plain for own, plain in zip(seconds, baseline, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ms": 1e3 * statistics.median(seconds),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
    }


def find_workload(name: str) -> Workload:
    """A workload of the table."""
    if name not in WORKLOADS:
        raise InputError(unknown("workload", name, WORKLOADS))
    return WORKLOADS[name]
