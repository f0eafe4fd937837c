"""SPL and co-teaching on CIFAR-10 in a loop that shares nothing with our engine but the loading of the files.

    python benchmarks/plain_loop.py --data-dir data --corruption symmetric --rate 0.7 --method spl --precision tf32

One forward pass, the loss over the kept logits, Adam at a constant rate, dropout that is on in tests, too, the noise of
seed 0: what is known of the authors' code, written down once more. It is there to be disagreed with: where a figure of
`gradsieve reproduce table2` is not the paper's, this says whether our engine is the reason. Slow: launch by launch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradsieve import DATASETS

BATCH = 128
CLASSES = 10
CHANNELS = ((3, 128), (128, 128), (128, 128), (128, 256), (256, 256), (256, 256), (256, 512), (512, 256), (256, 128))
POOLED = (2, 5)  # after these layers


class Net(nn.Module):
    """Nine convolutions; the last three are not padded."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=int(number < 6)) for number, (a, b) in enumerate(CHANNELS)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b in CHANNELS)
        self.last = nn.Linear(CHANNELS[-1][1], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = images
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            hidden = F.leaky_relu(norm(convolution(hidden)), 0.01)
            if number in POOLED:
                hidden = F.dropout2d(F.max_pool2d(hidden, 2, 2), 0.25)  # always on
        return self.last(hidden.mean((2, 3)))


def corrupted(labels: np.ndarray, corruption: str, rate: float) -> np.ndarray:
    """Each label drawn anew from its class's row of a transition matrix."""
    others = np.full((CLASSES, CLASSES), rate / (CLASSES - 1))
    if corruption == "pairflip":
        others = rate * np.roll(np.eye(CLASSES), 1, axis=1)
    np.fill_diagonal(others, 1 - rate)
    random = np.random.RandomState(0)
    return np.array([random.multinomial(1, others[label]).argmax() for label in labels])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--corruption", choices=["symmetric", "pairflip"], default="symmetric")
    parser.add_argument("--rate", type=float, default=0.7)
    parser.add_argument("--method", choices=["spl", "co-teaching"], default="spl")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="tf32")
    parser.add_argument("--ramp", type=int, default=9, help="epochs until all of the rate is dropped")
    parser.add_argument("--divide", action="store_true", help="divide the mean loss by the kept rows once more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=49)
    parser.add_argument("--rows", type=int, default=50_000, help="fewer, to try it out")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = DATASETS["cifar10"](options.data_dir)

    def images(values: Tensor) -> Tensor:
        scaled = values.float() / 255 if values.dtype == torch.uint8 else values.float()
        return scaled.to(device).contiguous(memory_format=torch.channels_last)

    train, test = images(data.train.inputs[: options.rows]), images(data.test.inputs[: options.rows])
    clean = data.train.targets[: options.rows].numpy()
    given = torch.tensor(corrupted(clean, options.corruption, options.rate), device=device)
    right = data.test.targets[: options.rows].to(device)

    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = options.precision != "fp32"
    networks = [
        Net().to(device).to(memory_format=torch.channels_last)
        for _ in range(2 if options.method == "co-teaching" else 1)
    ]
    optimizers = [torch.optim.Adam(network.parameters(), 1e-3) for network in networks]
    cast = torch.autocast(device, torch.bfloat16, enabled=options.precision == "bf16")

    curve, began = [], time.monotonic()
    for epoch in range(1, options.epochs + 1):
        keep = int((1 - options.rate * min(epoch / options.ramp, 1)) * BATCH)
        order = torch.randperm(len(train), device=device)
        for network in networks:
            network.train()
        for rows in order[: len(order) // BATCH * BATCH].split(BATCH):
            labels = given[rows]
            with cast:
                outputs = [network(train[rows]) for network in networks]
            outputs = [logits.float() for logits in outputs]
            kept = [F.cross_entropy(logits.detach(), labels, reduction="none").argsort()[:keep] for logits in outputs]
            for number, optimizer in enumerate(optimizers):
                mine = kept[-1 - number]  # of two the other's
                loss = F.cross_entropy(outputs[number][mine], labels[mine])
                optimizer.zero_grad()
                (loss / keep if options.divide else loss).backward()
                optimizer.step()
        with torch.no_grad(), cast:
            for network in networks:
                network.eval()
            hits = [torch.cat([network(part).argmax(1) for part in test.split(1000)]) == right for network in networks]
        curve.append(float(np.mean([each.float().mean().item() for each in hits])))
        print(f"epoch {epoch}  accuracy {curve[-1]:.4f}  mean of the last ten {np.mean(curve[-10:]):.4f}", flush=True)
    if options.out:
        record = {**vars(options), "curve": curve, "seconds": time.monotonic() - began}
        options.out.write_text(json.dumps(record, default=str) + "\n")


if __name__ == "__main__":
    main()
