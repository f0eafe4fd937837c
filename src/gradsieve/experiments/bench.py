"""What robust training costs on this machine: the time of a step of every method beside a plain one.

A step is scores, selection, forward, backward and update; in the captured engines also the drawing of the batch and
the recording in ledger and tally. The methods take turns, so that other load on the machine slows all of them alike.
A ratio is the median over turns of a method's time over Standard's time in the same turn. A turn repeats the step until
it lasts ``TURN`` seconds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gradsieve.arguments import argument
from gradsieve.counts import check_rate
from gradsieve.errors import InputError
from gradsieve.experiments.floors import make_floor
from gradsieve.experiments.parts import make_parts, void
from gradsieve.experiments.peers import PEERS
from gradsieve.experiments.workloads import WORKLOADS, Setup, Workload, find_workload, make_captured, set_up
from gradsieve.kernels import without_kernels
from gradsieve.method import Method, make_method
from gradsieve.methods import METHODS
from gradsieve.registry import unknown
from gradsieve.training.repeatable import reproducible
from gradsieve.training.run import Compile
from gradsieve.training.setting import choose_device
from gradsieve.training.update import update

__all__ = ["BASELINE", "ENGINES", "WORKLOADS", "Step", "Workload", "bench", "find_workload", "make_step"]

Step = Callable[[], None]
BASELINE = "standard"
PLAIN = "plain: standard"
FLOOR = "layers alone"
TURN = 0.02  # seconds that a turn lasts at least, so that the clock is accurate enough
MOST_STEPS = 1000  # in a turn, however short a step is


def plain_step(rule: Method, workload: Workload, setup: Setup, drop_rate: float) -> Step:
    """A step as in a user's own training loop."""

    return lambda: void(update(rule, setup.networks, setup.optimizers, setup.inputs, setup.targets, drop_rate))


def captured_step(compile: Compile, rule: Method, workload: Workload, setup: Setup, drop_rate: float) -> Step:
    """A step of the captured engine, with the drawing of the batch and the recording."""
    engine = make_captured(rule, workload, setup, drop_rate, compile)
    size, batches, turn = workload.batch_size, len(engine.feed) // workload.batch_size, 0

    def step() -> None:
        nonlocal turn
        if turn % batches == 0:
            engine.place.zero_()
        turn += 1
        engine.graph(drop_rate, size).replay()

    return step


ENGINES: dict[str, Callable[[Method, Workload, Setup, float], Step]] = {
    "plain": plain_step,
    "captured": partial(captured_step, "off"),
    "compiled": partial(captured_step, "on"),
}


def make_step(workload: Workload, method: str, drop_rate: float, device: torch.device, engine: str = "plain") -> Step:
    """One training step of a method, or of a peer (which ignores ``engine``).

    ``method`` may carry options, ``prl-l:passes=index``; ``prl-g:kernels=off`` uses PyTorch's operations only.
    """
    if method in PEERS:
        return PEERS[method].make(workload, set_up(workload, device), drop_rate)
    name, _, text = method.partition(":")
    options: dict[str, str] = {}
    for pair in filter(None, text.split(";")):
        option, _, options[option] = pair.partition("=")
    kernels = options.pop("kernels", "on")
    rule = make_method(name, METHODS, workload.criterion, workload.task, options)
    setup = set_up(workload, device, rule.networks)
    for network in setup.networks:
        rule.require(network, workload.batch_size, device)
    if kernels == "on":
        return ENGINES[engine](rule, workload, setup, drop_rate)
    with without_kernels():
        step = ENGINES[engine](rule, workload, setup, drop_rate)
    return without_kernels()(step)  # for every call: a plain step chooses its kernels in each, a captured one only once


def bench(
    workload: Workload,
    methods: Sequence[str] = (),
    *,
    drop_rate: float = 0.45,
    turns: int = 30,
    device: str = "auto",
    engine: str = "auto",
    peers: bool = False,
    floors: bool = True,
) -> dict[str, Any]:
    """Milliseconds per step and the ratio to Standard for each method: {"device": ..., "methods": {name: ...}}.

    ``engine`` is plain, captured (CUDA graphs) or compiled (and torch.compile); auto takes the last on a GPU.
    ``peers`` adds the authors' implementation, Opacus and torch.func, as far as they can do the workload; ``floors``
    adds the matrix products of the layers alone. Parts of a robust step are timed as well.
    """
    check_rate(argument("drop_rate"), drop_rate)
    if turns < 3:
        raise InputError(f"{argument('turns')} is {turns}, but a median with its spread needs at least 3.")
    where = choose_device(device)
    engine = check_engine(engine, where)
    able = [name for name in METHODS if workload.task in METHODS[name].tasks]
    if engine != "plain":
        able = [name for name in able if not METHODS[name].decides_on_host]
    chosen = dict.fromkeys([BASELINE, *(methods or able)])
    makers = {name: partial(make_step, workload, name, drop_rate, where, engine) for name in chosen}
    left_out = obstacles(workload) if peers else {}
    if peers:
        if engine != "plain":  # peers run as plain steps: time Standard likewise, to compare with
            makers[PLAIN] = partial(make_step, workload, BASELINE, drop_rate, where)
        makers |= {name: partial(make_step, workload, name, drop_rate, where) for name in PEERS if name not in left_out}
    with reproducible(0, where):  # with the same deterministic algorithms as in a run
        steps: dict[str, Step] = {}
        memory: dict[str, dict[str, float]] = {}
        for name, make in makers.items():
            steps[name], memory[name] = measured_memory(make, where)
        floor = make_floor(workload, where) if floors else None
        parts = make_parts(workload, drop_rate, where, engine == "compiled")
        beside = {} if floor is None else {FLOOR: floor.step}
        seconds = take_turns(steps | beside | parts, turns, where)
    rows = {name: summary(each, seconds[BASELINE]) for name, each in seconds.items()}
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "engine": engine,
        "drop_rate": drop_rate,
        "batch_size": workload.batch_size,
        "turns": turns,
        "methods": {name: rows[name] | memory[name] for name in steps},
    }
    if floor is not None:
        rates = {name: floor.flops / rows[name]["ms"] / 1e9 for name in (BASELINE, FLOOR)}
        found["floor"] = rows[FLOOR] | {
            "gflop": floor.flops / 1e9,
            "tflops": rates[FLOOR],
            "standard_tflops": rates[BASELINE],
        }
    found["parts"] = {name: rows[name] for name in parts}
    if peers:
        found["left_out"] = left_out
    return found


def check_engine(engine: str, device: torch.device) -> str:
    """The engine asked for, or the one that suits the device best."""
    if engine == "auto":
        return "compiled" if device.type == "cuda" else "plain"
    if engine not in ENGINES:
        raise InputError(unknown("engine", engine, ENGINES))
    if engine in ("captured", "compiled") and device.type != "cuda":
        raise InputError(
            f"{argument('engine')} is {engine!r}, but only CUDA has graphs, and the device is {device.type}. Use plain."
        )
    return engine


def obstacles(workload: Workload) -> dict[str, str]:
    """The peers that cannot do a workload, and why."""
    network = set_up(workload, torch.device("cpu")).networks[0]
    reasons = {name: peer.obstacle(network) for name, peer in PEERS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def measured_memory(make: Callable[[], Step], device: torch.device) -> tuple[Step, dict[str, float]]:
    """A step, warmed up, and the peak memory of it and its networks on a GPU."""
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if is_cuda else 0
    step = make()
    for _ in range(3):  # allocates buffers and caches, chooses algorithms; the first call captures a graph
        step()
    return step, {"peak_mib": (torch.cuda.max_memory_allocated(device) - before) / 2**20} if is_cuda else {}


def take_turns(steps: Mapping[str, Step], turns: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds per step, in each of the turns."""
    counts = {name: steps_a_turn(step, device) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            seconds[name].append(timed(step, counts[name], device))
    return seconds


def steps_a_turn(step: Step, device: torch.device) -> int:
    """How many steps fill a turn."""
    step()
    once = timed(step, 1, device)
    return min(MOST_STEPS, max(1, math.ceil(TURN / once)))


def timed(step: Step, count: int, device: torch.device) -> float:
    """The mean seconds of a step over ``count`` in a row, including the device's work.

    Synchronizing after every step would be timed as well: on a GPU, events mark the start of the first step and the end
    of the last one instead.
    """
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - start) / count
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(count):
            step()
        last.record()
        last.synchronize()
    return first.elapsed_time(last) / 1e3 / count


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
