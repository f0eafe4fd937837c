"""The loop of the paper's released code, written down once more: it shares the loading of the files with ours alone.

    python benchmarks/authors_loop.py --data-dir data --data cifar100 --rate 0.5 --method co-prl-l

It is there to be disagreed with: where a figure of `gradsieve reproduce table2` is not the paper's, this says whether
the released code has it. What that does, and our preset `authors` does otherwise:

- two networks in any case, and of SPL and PRL(L) the mean of both, each trained by itself (`--networks 1` trains one
  of these, in half the time);
- the mean loss of the kept rows is divided by their number once more, which Adam feels as a larger epsilon
  (`--no-divide`);
- the rate rises from 0 in the epoch before the first, and is there an epoch sooner;
- PRL(L) and Co-PRL(L) look at a batch twice before they train on what they keep, and both looks enter BatchNorm's
  running statistics (`--no-looks`: scored once, and they do not);
- each label is drawn by itself, so that how many are wrong is a matter of chance, too (`--labels ours`; the other way
  round, `--corruption authors_loop:drawn_symmetric` gives a run of ours these labels);
- a convolution before a norm has a bias; the last test images, which fill no batch, are left out;
- convolutions in TF32, ours in bf16 (`--precision bf16`), and no compiler.

With the switches, it goes over into our preset step by step.

On a GPU each step is one CUDA graph: 100 to 150 s a network on an H200, in TF32.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve import CORRUPTIONS, DATASETS, seeds
from gradsieve.corruptions.corruption import Corrupted, replace_rows, serves
from gradsieve.engine.captured import capture

BATCH = 128
CHANNELS = ((3, 128), (128, 128), (128, 128), (128, 256), (256, 256), (256, 256), (256, 512), (512, 256), (256, 128))
POOLED = (2, 5)  # after these layers
METHODS = ("standard", "spl", "prl-l", "co-teaching", "co-prl-l")


class Net(nn.Module):
    """Nine convolutions; the last three are not padded."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=int(number < 6)) for number, (a, b) in enumerate(CHANNELS)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b in CHANNELS)
        self.last = nn.Linear(CHANNELS[-1][1], classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = images
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            hidden = F.leaky_relu(norm(convolution(hidden)), 0.01)
            if number in POOLED:
                hidden = F.dropout2d(F.max_pool2d(hidden, 2, 2), 0.25)  # always on
        return self.last(hidden.mean((2, 3)))


def corrupted(labels: np.ndarray, corruption: str, rate: float, classes: int) -> np.ndarray:
    """Each label drawn anew from its class's row of a transition matrix, whatever the seed of the run."""
    chances = np.full((classes, classes), rate / (classes - 1))
    if corruption == "pairflip":
        chances = rate * np.roll(np.eye(classes), 1, axis=1)
    np.fill_diagonal(chances, 1 - rate)
    random = np.random.RandomState(0)
    return np.array([random.multinomial(1, chances[label]).argmax() for label in labels])


@serves("classification")
def drawn_symmetric(
    inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator, classes: int
) -> Corrupted:
    """Symmetric noise with the labels of the released code, for a run of ours.

    From this folder, or with it on PYTHONPATH: ``gradsieve train --corruption authors_loop:drawn_symmetric``.
    """
    given = torch.from_numpy(corrupted(targets.numpy(), "symmetric", rate, classes))
    wrong = (given != targets).nonzero().squeeze(1)
    return replace_rows(targets, wrong, given[wrong])


def exactly_corrupted(images: Tensor, labels: Tensor, corruption: str, rate: float, classes: int) -> Tensor:
    """The labels of our preset ``authors``: exactly that share of them is wrong."""
    drawn = seeds.generator(0, "corruption")
    return CORRUPTIONS[corruption](images, labels, rate, drawn, classes=classes)[0]


def rates(rate: float, rise: int, epochs: int) -> list[float]:
    """The drop rate of each epoch, from the first on."""
    return [rate * min(epoch / (rise - 1), 1) for epoch in range(1, epochs + 1)]


def step(
    networks: Sequence[nn.Module],
    images: Tensor,
    labels: Tensor,
    method: str,
    keep: int,
    divide: bool = True,
    looks: bool = True,
) -> None:
    """Leave each network's gradient in ``.grad``."""
    if method.endswith("prl-l"):
        with torch.no_grad():
            if looks:
                for network in networks:
                    network(images)
            with aside(networks, not looks):
                chances = [network(images).softmax(1) for network in networks]
        scores = [((each - F.one_hot(labels, each.shape[1])) ** 2).sum(1) for each in chances]
    else:
        outputs = [network(images) for network in networks]
        scores = [F.cross_entropy(each.detach(), labels, reduction="none") for each in outputs]
    kept = [each.argsort()[: len(labels) if method == "standard" else keep] for each in scores]
    for number, network in enumerate(networks):
        rows = kept[-1 - number if method.startswith("co-") else number]  # the other's
        again = network(images[rows]) if method.endswith("prl-l") else outputs[number][rows]
        loss = F.cross_entropy(again, labels[rows])
        (loss / keep if divide and method != "standard" else loss).backward()


@contextmanager
def aside(networks: Sequence[nn.Module], apart: bool) -> Iterator[None]:
    """Norms that keep their running statistics as they are."""
    norms = [
        module
        for network in networks
        for module in network.modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    ]
    before = [norm.momentum for norm in norms]
    for norm in norms if apart else ():
        norm.momentum = 0.0
    yield
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In percent, of whole batches."""
    whole = len(images) // BATCH * BATCH or len(images)
    with torch.no_grad():
        hits = [network(images[i : i + BATCH]).argmax(1) == labels[i : i + BATCH] for i in range(0, whole, BATCH)]
    return 100 * float(torch.cat(hits).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", choices=["cifar10", "cifar100"], default="cifar10")
    parser.add_argument("--corruption", choices=["symmetric", "pairflip"], default="symmetric")
    parser.add_argument("--rate", type=float, default=0.7)
    parser.add_argument("--method", choices=METHODS, default="spl")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="tf32")
    parser.add_argument("--rise", type=int, help="epochs, with the one before the first")
    parser.add_argument("--labels", choices=["drawn", "ours"], default="drawn")
    parser.add_argument("--divide", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--looks", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--networks", type=int, choices=[1, 2], default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=49)
    parser.add_argument("--rows", type=int, default=50_000, help="fewer, to try it out")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    if options.networks == 1 and options.method.startswith("co-"):
        parser.error(f"--networks 1: the two of {options.method} exchange rows, leave it at 2")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    half = torch.autocast(device, torch.bfloat16, cache_enabled=False) if options.precision == "bf16" else nullcontext()
    data = DATASETS[options.data](options.data_dir)

    def read(images: Tensor) -> Tensor:
        scaled = images[: options.rows].to(device).float() / 255
        return scaled.contiguous(memory_format=torch.channels_last)

    train, test, right = read(data.train.inputs), read(data.test.inputs), data.test.targets[: options.rows].to(device)
    clean, noise = data.train.targets[: options.rows], (options.corruption, options.rate, data.outputs)
    if options.labels == "drawn":
        given = torch.from_numpy(corrupted(clean.numpy(), *noise)).to(device)
    else:
        given = exactly_corrupted(data.train.inputs[: options.rows], clean, *noise).to(device)
    rise = options.rise or (15 if options.data == "cifar100" and options.corruption == "pairflip" else 10)

    torch.manual_seed(options.seed)
    networks = [Net(data.outputs).to(device).to(memory_format=torch.channels_last) for _ in range(options.networks)]
    in_graph = {"fused": True, "capturable": True} if device == "cuda" else {}
    optimizers = [torch.optim.Adam(network.parameters(), 1e-3, **in_graph) for network in networks]
    rows = torch.zeros(BATCH, dtype=torch.long, device=device)

    def update(keep: int) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
        with half:
            step(networks, train[rows], given[rows], options.method, keep, options.divide, options.looks)
        for optimizer in optimizers:
            optimizer.step()

    def changing() -> dict[str, Tensor]:
        """All that a step changes but the gradients."""
        found = {f"{n}.{name}": value for n, each in enumerate(networks) for name, value in each.state_dict().items()}
        for n, optimizer in enumerate(optimizers):
            for place, moments in enumerate(optimizer.state.values()):
                found |= {f"{n}.{place}.{name}": value for name, value in moments.items()}
        return found

    graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def stepper(keep: int) -> Callable[[], None]:
        if device == "cpu":
            return lambda: update(keep)
        if keep not in graphs:
            graphs.clear()
            graphs[keep] = capture(lambda: update(keep), changing)
        return graphs[keep].replay

    curve: list[list[float]] = []
    began = time.monotonic()
    for epoch, rate in enumerate(rates(options.rate, rise, options.epochs), 1):
        for network in networks:
            network.train()
        go = stepper(int((1 - rate) * BATCH))
        for chosen in torch.randperm(len(train), device=device)[: len(train) // BATCH * BATCH].split(BATCH):
            rows.copy_(chosen)
            go()
        with half:
            curve.append([accuracy(network.eval(), test, right) for network in networks])
        last = np.mean(curve[-10:], 0)
        print(f"epoch {epoch}  {np.round(curve[-1], 2)}  last ten {last.mean():.2f} {np.round(last, 2)}", flush=True)
    if options.out:
        record = {**vars(options), "curve": curve, "seconds": time.monotonic() - began}
        options.out.write_text(json.dumps(record, default=str) + "\n")


if __name__ == "__main__":
    main()
