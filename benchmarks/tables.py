"""Robust regression on four tables: clean-test R2 with 30 % of the training targets corrupted.

    python benchmarks/tables.py --data-dir data --out runs/tables                # hours on two cores
    python benchmarks/tables.py --data-dir data --out runs/tables --rows 4000 --epochs 40

RobustRegressor at the true rate, and scikit-learn's HuberRegressor, RANSACRegressor, MLPRegressor (the same network
and epochs) and HistGradientBoostingRegressor with absolute error. Targets and inputs are standardised on clean rows
first, as the paper does, then targets are corrupted. Writes tables.json after every cell, goes on where it stopped,
and tables.md in the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, RANSACRegressor
from sklearn.metrics import r2_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPRegressor

from gradsieve import CORRUPTIONS, DATASETS, RobustRegressor
from gradsieve.data import DataSet
from gradsieve.seeds import generator

TARGETS = {
    "power_plant": "",  # the last column
    "kin8nm": "",
    "naval_propulsion": "gt_compressor_decay,gt_turbine_decay",
    "california_housing": "",
}
KINDS = ("linadv", "signflip", "uninoise", "mixture")
RATE = 0.3
HIDDEN = (256, 256)


def estimators(rate: float, epochs: int, seed: int, clips: list[float]) -> dict[str, Callable[[], Any]]:
    """What is compared, by name. Those that know one target only are fitted once for each."""
    boosting = {"loss": "absolute_error", "random_state": seed}
    ours = {"drop_rate": rate, "hidden": HIDDEN, "epochs": epochs, "random_state": seed}
    named = {
        f"RobustRegressor{'' if clip == clips[0] else f' clip {clip:g}'}": lambda clip=clip: RobustRegressor(
            input_clip=clip, **ours
        )
        for clip in clips
    }
    return {
        **named,
        "HuberRegressor": lambda: MultiOutputRegressor(HuberRegressor(max_iter=1000)),
        "RANSACRegressor": lambda: MultiOutputRegressor(RANSACRegressor(random_state=seed)),
        "MLPRegressor": lambda: MLPRegressor(hidden_layer_sizes=HIDDEN, max_iter=epochs, random_state=seed),
        "HistGradientBoosting": lambda: MultiOutputRegressor(HistGradientBoostingRegressor(**boosting)),
    }


def load(folder: Path, table: str, target: str) -> DataSet:
    path = folder / f"{table}.csv"
    return DATASETS["table"](path, target=target or path.open().readline().strip().split(",")[-1])


def corrupted(data: DataSet, kind: str, rows: int, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Some training rows, with corrupted targets."""
    chosen = torch.randperm(len(data.train), generator=generator(seed, "tables", "rows"))[:rows]
    inputs, targets = data.train.inputs[chosen], data.train.targets[chosen]
    given = CORRUPTIONS[kind](inputs, targets, rate, generator(seed, "tables", kind)).targets
    return inputs.numpy().astype(np.float64), given.numpy().astype(np.float64)


def cell(make: Callable[[], Any], data: DataSet, rows: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Clean-test R2 of one estimator, and the seconds of its fit."""
    X, y = rows
    start = time.perf_counter()
    model = make()
    # MLPRegressor warns about a column that is a vector; it and ours take many targets as they are.
    model.fit(X, y.ravel() if y.shape[1] == 1 and not isinstance(model, MultiOutputRegressor) else y)
    seconds = time.perf_counter() - start
    predictions = model.predict(data.test.inputs.numpy().astype(np.float64)).reshape(len(data.test), -1)
    return {"r2": r2_score(data.test.targets.numpy(), predictions), "seconds": seconds}


def markdown(found: dict[str, dict[str, float]], settings: dict[str, Any]) -> str:
    """Mean over seeds: a line for each table and corruption, and the mean of a table's corruptions."""
    names = list(dict.fromkeys(key.split("/")[3] for key in found))
    lines = [f"| table | corruption | {' | '.join(names)} |", f"| --- | --- |{' --- |' * len(names)}"]
    for table in dict.fromkeys(key.split("/")[0] for key in found):
        means: dict[str, list[float]] = {name: [] for name in names}
        for kind in dict.fromkeys(key.split("/")[1] for key in found if key.startswith(f"{table}/")):
            row = []
            for name in names:
                values = [
                    value["r2"]
                    for key, value in found.items()
                    if key.split("/")[:2] + key.split("/")[3:] == [table, kind, name]
                ]
                row.append(statistics.fmean(values) if values else float("nan"))
                means[name].append(row[-1])
            lines.append(f"| {table} | {kind} | {' | '.join(f'{value:.3f}' for value in row)} |")
        lines.append(f"| **{table}** | mean | {' | '.join(f'{statistics.fmean(means[name]):.3f}' for name in names)} |")
    return "\n".join([f"Settings: {json.dumps(settings)}", "", *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/tables"))
    parser.add_argument("--tables", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, "none"], default=list(KINDS))
    parser.add_argument("--rows", type=int, default=1_000_000, help="most training rows of a table")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--clips", nargs="+", type=float, default=[3.0], help="input_clip, the first is the default")
    parser.add_argument("--only", default="", help="estimators whose name holds this")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "tables.json"
    settings = {"rate": RATE, "rows": options.rows, "epochs": options.epochs, "torch": torch.__version__}
    stored = json.loads(path.read_text()) if path.exists() else {"settings": settings, "cells": {}}
    if stored["settings"] != settings:
        raise SystemExit(f"{path} holds other settings: {stored['settings']}. Choose another --out.")
    found = stored["cells"]
    for table in options.tables:
        data = load(options.data_dir, table, TARGETS[table])
        for seed in options.seeds:
            for kind in options.kinds:
                rate = 0.0 if kind == "none" else RATE
                rows = corrupted(data, kind, options.rows, rate, seed)
                for name, make in estimators(rate, options.epochs, seed, options.clips).items():
                    key = f"{table}/{kind}/{seed}/{name}"
                    if key not in found and options.only in name:
                        found[key] = cell(make, data, rows)
                        print(f"{key}  {found[key]['r2']:.3f}  {found[key]['seconds']:.1f} s", flush=True)
                        path.write_text(json.dumps(stored, indent=1))
    (options.out / "tables.md").write_text(markdown(found, settings))
    print((options.out / "tables.md").read_text())


if __name__ == "__main__":
    main()
