"""What a robust step costs against batch size, rows, classes and parameters: it should grow as a plain one does.

    python benchmarks/scaling.py                         # docs/scaling.json and docs/scaling.png, a minute or two
    python benchmarks/scaling.py --full --out runs       # up to batches of 65,536 rows and 10,000 classes

Milliseconds of a training step of the MLP 512-256-256-10 (batch 512, drop rate 0.45) with one of its sizes changed at a
time, the methods taking turns; for the rows of a data set, seconds of an epoch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source
from gradsieve.experiments.bench import bench, find_workload
from gradsieve.experiments.workloads import Workload, set_up
from gradsieve.training.loop import train
from gradsieve.training.run import Run
from gradsieve.training.setting import choose_device

METHODS = ("standard", "prl-l", "prl-g")
PARTS = ("selection", "ledger and tally")
DROP_RATE = 0.45
SIZES = {  # the usual and the full ones
    "batch size": ((128, 512, 2048, 8192), (128, 512, 2048, 8192, 32768, 65536)),
    "rows of the data set": ((4096, 8192, 16384, 32768), (4096, 16384, 65536, 262144)),
    "classes": ((10, 100, 1000), (10, 100, 1000, 10000)),
    "parameters": ((64, 128, 256, 512), (64, 128, 256, 512, 1024, 2048)),  # units of the two hidden layers
}


def workload_of(axis: str, size: int) -> Workload:
    """The MLP with one size changed."""
    usual = find_workload("mlp")
    if axis == "batch size":
        return replace(usual, batch_size=size)
    if axis == "classes":
        return replace(usual, task="classification", outputs=size)
    return replace(usual, model_options=(("hidden", [size, size]),))


def measure_steps(axis: str, sizes: Sequence[int], turns: int, device: str) -> dict[str, Any]:
    """Milliseconds a step against a size, and the share of it that selection and book-keeping take."""
    places, times, shares = [], {name: [] for name in METHODS}, {name: [] for name in PARTS}
    for size in sizes:
        workload = workload_of(axis, size)
        if axis == "parameters":
            network = set_up(workload, torch.device("cpu")).networks[0]
            places.append(sum(parameter.numel() for parameter in network.parameters()))
        else:
            places.append(size)
        measured = bench(workload, METHODS, drop_rate=DROP_RATE, turns=turns, device=device)
        for name in METHODS:
            times[name].append(measured["methods"][name]["ms"])
        for name in PARTS:
            shares[name].append(measured["parts"][name]["ratio"])
    return {"unit": "ms a step", "at": places, "times": times, "growth": growth(places, times), "parts": shares}


def measure_epochs(sizes: Sequence[int], turns: int, device: str) -> dict[str, Any]:
    """Seconds of an epoch, book-keeping and test included, against the rows of the data set."""
    times = {name: [] for name in METHODS}
    for size in sizes:
        for name in METHODS:
            times[name].append(epoch_seconds(name, size, turns, device))
    return {"unit": "s an epoch", "at": list(sizes), "times": times, "growth": growth(sizes, times)}


def epoch_seconds(method: str, rows: int, epochs: int, device: str) -> float:
    """The median epoch but the first."""
    run = Run(
        data="scaling:RANDOM_ROWS",
        data_options={"rows": rows},
        method=method,
        drop_rate=DROP_RATE,
        schedule="constant",
        model="mlp",
        epochs=epochs + 1,
        batch_size=512,
        learning_rate=1e-4,
        device=device,
    )
    stamps = [record["seconds"] for record in train(run).history]
    return statistics.median(later - earlier for earlier, later in pairwise(stamps))


def random_rows(folder: Path | None = None, rows: int = 4096) -> DataSet:
    """Random inputs and targets of the MLP's shapes, and a few rows to test on."""
    draw = torch.Generator().manual_seed(0)

    def make(count: int) -> Rows:
        inputs: Tensor = torch.randn(count, 512, generator=draw)
        return Rows(inputs, torch.randn(count, 10, generator=draw))

    return DataSet("regression", make(rows), make(512), tuple(f"y{number}" for number in range(10)))


RANDOM_ROWS = Source("random numbers", ("regression",), random_rows, Recipe("mlp", 1, 512, 1e-4, 1))


def growth(places: Sequence[int], times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The power of the size that the time grows by, over the last two sizes: 1 is linear, less is better."""
    return {
        name: math.log(values[-1] / values[-2]) / math.log(places[-1] / places[-2]) for name, values in times.items()
    }


def draw(measured: Mapping[str, Any], path: Path) -> None:
    """A panel for each size, both axes logarithmic, with a line of linear growth to compare with."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(measured["axes"]), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(measured["axes"]), squeeze=False)[0]
    for panel, (axis, values) in zip(panels, measured["axes"].items(), strict=True):
        places = values["at"]
        for name, times in values["times"].items():
            panel.loglog(places, times, "o-", label=f"{name}, power {values['growth'][name]:.2f}", linewidth=1.6)
        last = max(times[-1] for times in values["times"].values())
        panel.loglog(places, [1.3 * last * place / places[-1] for place in places], ":", color="grey", label="linear")
        panel.set_xlabel(axis)
        panel.set_ylabel(values["unit"])
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.suptitle(
        f"MLP 512-256-256-10, drop rate {DROP_RATE}, {measured['device']}, torch {measured['torch']}; "
        "the power of growth is that between the last two points",
        fontsize=9,
    )
    figure.savefig(path, dpi=150)


def measure(sizes: Mapping[str, Sequence[int]], turns: int, device: str) -> dict[str, Any]:
    """Every axis, one after the other."""
    where = choose_device(device)
    return {
        "device": torch.cuda.get_device_name(where)
        if where.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "drop_rate": DROP_RATE,
        "turns": turns,
        "axes": {
            axis: measure_epochs(each, min(turns, 3), device)
            if axis == "rows of the data set"
            else measure_steps(axis, each, turns, device)
            for axis, each in sizes.items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for scaling.json and scaling.png")
    parser.add_argument("--full", action="store_true", help="larger sizes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="auto")
    chosen = parser.parse_args(arguments)
    measured = measure({axis: each[chosen.full] for axis, each in SIZES.items()}, chosen.turns, chosen.device)
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "scaling.json").write_text(json.dumps(measured, indent=2) + "\n")
    draw(measured, chosen.out / "scaling.png")
    for axis, values in measured["axes"].items():
        powers = ", ".join(f"{name} {power:.2f}" for name, power in values["growth"].items())
        shares = ", ".join(f"{name} {max(each):.1%}" for name, each in values.get("parts", {}).items())
        print(f"{axis}: grows by the power {powers}" + (f"; at most of a step: {shares}" if shares else ""))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # a run finds its data set by the name of this module
    main()
