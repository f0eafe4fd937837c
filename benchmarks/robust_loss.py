"""What RobustLoss adds to a training step over the bare criterion.

    python benchmarks/robust_loss.py                   # MLP 512-256-256-10, batch 512, on this machine's cores
    python benchmarks/robust_loss.py --device cuda --model cnn9 --batch 128

Both losses train copies of one network in turns, forward to update, so that both see the same machine; a time is
the median over the rounds, and so is the ratio of each round. Where a copy lies in memory makes a difference of up to
two percent for as long as it lives, so there are several sets of copies, one after another.
"""

from __future__ import annotations

import argparse
import copy
import platform
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve import RobustLoss
from gradsieve.models.build import build

Step = Callable[[], None]
WARM_UP = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["mlp", "cnn9"], default="mlp")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sets", type=int, default=8, help="of copies")
    parser.add_argument("--rounds", type=int, default=40, help="of each set")
    parser.add_argument("--steps", type=int, default=5, help="steps of each loss in a round")
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{options.model}, batch {options.batch}, {options.device}")
    for name, criterion in (("squared error", F.mse_loss), ("cross-entropy", F.cross_entropy)):
        network, inputs, targets = workload(options.model, options.batch, name)
        batch = [each.to(options.device) for each in (inputs, targets)]
        losses = {
            "bare": criterion,
            "again": criterion,  # how much of a difference is noise
            "gradient": RobustLoss(criterion, 0.3),
            "loss": RobustLoss(criterion, 0.3, score="loss"),
        }
        seconds: dict[str, list[float]] = {each: [] for each in losses}
        for _ in range(options.sets):
            copies = {each: copy.deepcopy(network).to(options.device) for each in losses}
            steps = {each: make_step(copies[each], loss, *batch) for each, loss in losses.items()}
            for each, times in in_turns(steps, options.rounds, options.steps, options.device).items():
                seconds[each] += times
        report(name, seconds)


def workload(model: str, rows: int, loss: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and a batch for it."""
    torch.manual_seed(0)
    if model == "mlp":
        layers = [nn.Linear(512, 256), nn.LeakyReLU(0.01), nn.Linear(256, 256), nn.LeakyReLU(0.01), nn.Linear(256, 10)]
        network, inputs = nn.Sequential(*layers), torch.randn(rows, 512)
    else:
        network, inputs = build("cnn9", (3, 32, 32), 10), torch.rand(rows, 3, 32, 32)
    targets = torch.randint(10, (rows,)) if loss == "cross-entropy" else torch.randn(rows, 10)
    return network, inputs, targets


def make_step(network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor) -> Step:
    optimizer = torch.optim.Adam(network.parameters(), 3e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss(network(inputs), targets).backward()
        optimizer.step()

    return step


def in_turns(steps: dict[str, Step], rounds: int, count: int, device: str) -> dict[str, list[float]]:
    """Seconds of a step of each, round by round; who begins changes."""
    names, seconds = list(steps), {name: [] for name in steps}
    for number in range(WARM_UP // count + rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            wait(device)
            start = time.perf_counter()
            for _ in range(count):
                steps[name]()
            wait(device)
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: times[-rounds:] for name, times in seconds.items()}


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def report(name: str, seconds: dict[str, list[float]]) -> None:
    print(f"\n{name}\n  {'loss':10} {'ms a step':>10} {'over bare':>10}")
    for loss, times in seconds.items():
        ratio = median(time / bare for time, bare in zip(times, seconds["bare"], strict=True))
        print(f"  {loss:10} {median(times) * 1e3:10.3f} {ratio - 1:+10.1%}")


if __name__ == "__main__":
    main()
