"""What a step over several ranks costs on this machine, and how much of it is the selection.

For each number of ranks, that many processes share a workload's batch, over gloo on the CPU and NCCL on GPUs. A step, a
plain step, the selection alone and the sum of the gradients alone take turns; all ranks begin each turn together. On a
machine with fewer cores than ranks the processes wait for each other, and everything takes longer.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gradsieve import ranks
from gradsieve.arguments import argument
from gradsieve.counts import check_rate
from gradsieve.errors import GradsieveError, InputError
from gradsieve.experiments.bench import BASELINE, timed
from gradsieve.experiments.cost_model import all_reduce_bytes, selection_bytes
from gradsieve.experiments.workloads import Workload, find_workload, set_up
from gradsieve.method import make_method
from gradsieve.methods import METHODS
from gradsieve.selection import keep_smallest
from gradsieve.training.repeatable import reproducible
from gradsieve.training.setting import choose_device
from gradsieve.training.update import update

LONGEST = 600  # seconds that the measurement for one number of ranks may take


def rank_bench(
    workload: str,
    worlds: Sequence[int],
    method: str = "prl-l",
    *,
    batch_size: int | None = None,
    drop_rate: float = 0.45,
    turns: int = 10,
    device: str = "auto",
) -> dict[str, Any]:
    """Milliseconds and bytes of a step over each number of ranks: {"worlds": {"2": {"ms": ...}}}."""
    check_rate(argument("drop_rate"), drop_rate)
    found = find_workload(workload, batch_size)
    make_method(method, METHODS, found.criterion, found.task, {})
    if turns < 3:
        raise InputError(f"{argument('turns')} is {turns}, but a median needs at least 3.")
    for world in worlds:
        if not 1 <= world <= found.batch_size:
            raise InputError(
                f"{world} ranks cannot share a batch of {found.batch_size} rows: give from 1 up to as many."
            )
    order = {
        "workload": workload,
        "batch_size": found.batch_size,
        "method": method,
        "drop_rate": drop_rate,
        "turns": turns,
        "device": device,
    }
    return {**order, "torch": torch.__version__, "worlds": {str(world): launch(world, order) for world in worlds}}


def launch(world: int, order: dict[str, Any]) -> dict[str, Any]:
    """Start ``world`` processes, and return what the first of them measures."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = str(max(1, (os.cpu_count() or 1) // world))
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    command = [sys.executable, "-m", "gradsieve.experiments.rank_bench", json.dumps(order)]
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **rendezvous, "OMP_NUM_THREADS": threads, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        output, error = workers[0].communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise GradsieveError(
            f"{world} ranks did not finish within {LONGEST} seconds. Take a smaller workload."
        ) from None
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if workers[0].returncode:
        reason = (error.strip().splitlines() or ["it was killed"])[-1]
        raise GradsieveError(f"{world} ranks could not be measured: {reason}")
    return json.loads(output)


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Run one rank's part of the measurement."""
    workload = find_workload(order["workload"], order["batch_size"])
    device = choose_device(order["device"])
    with reproducible(0, device):
        step = step_of(workload, order["method"], order["drop_rate"], device)
        plain = step_of(workload, BASELINE, 0.0, device)
        setup = set_up(workload, device)
        for parameter in setup.networks[0].parameters():
            parameter.grad = torch.zeros_like(parameter)
        scores = torch.rand(workload.batch_size, generator=torch.Generator().manual_seed(0)).to(device)
        scores = scores[ranks.own_part(workload.batch_size)]
        parts: dict[str, Callable[[], Any]] = {
            "step": step,
            "standard": plain,
            "selection": lambda: keep_smallest(scores, order["drop_rate"], ties=scores),
            "gradient": lambda: ranks.sum_gradients(setup.networks),
        }
        seconds = turns_together(parts, order["turns"], device)
    parameters = sum(each.numel() for each in setup.networks[0].parameters())
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    world = ranks.world_size()
    return {
        "threads": torch.get_num_threads(),
        **{f"{name}_ms": 1e3 * value for name, value in middle.items()},
        "selection_share": middle["selection"] / middle["step"],
        "selection_bytes": selection_bytes(workload.batch_size, world),
        "gradient_bytes": all_reduce_bytes(4 * parameters, world),
    }


def step_of(workload: Workload, name: str, drop_rate: float, device: torch.device) -> Callable[[], Any]:
    """A training step on this rank's rows."""
    rule = make_method(name, METHODS, workload.criterion, workload.task, {})
    setup = set_up(workload, device, rule.networks)
    own = ranks.own_part(workload.batch_size)
    if ranks.world_size() > 1:
        for network in setup.networks:
            ranks.norm_over_ranks(network, "sync")
    batch = setup.inputs[own], setup.targets[own]
    return partial(update, rule, setup.networks, setup.optimizers, *batch, drop_rate)


def turns_together(parts: dict[str, Callable[[], Any]], turns: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each part in each turn. The first rank decides how often a turn repeats it."""
    counts = {}
    for name, part in parts.items():
        part()
        once = timed(part, 2, device)
        (counts[name],) = ranks.largest([max(1, min(200, int(0.05 / once))) if ranks.is_first() else 0])
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(turns):
        for name, part in parts.items():
            if ranks.world_size() > 1:
                dist.barrier()
            seconds[name].append(timed(part, counts[name], device))
    return seconds


def main() -> None:
    order = json.loads(sys.argv[1])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with ranks.joined(order["device"]):
        found = measure(order)
        if ranks.is_first():
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
