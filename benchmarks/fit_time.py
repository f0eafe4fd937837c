"""Fit time of RobustRegressor beside scikit-learn's MLPRegressor: the same network, batch size and epochs.

    python benchmarks/fit_time.py                              # 100,000 x 50 rows, about a minute
    python benchmarks/fit_time.py --rows 10000 --epochs 2

Both fit a 256-256 network by Adam in batches of 200, MLPRegressor's default. They take turns, and the best time of
each counts: whatever else the machine does only ever adds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from gradsieve import RobustRegressor

HIDDEN = (256, 256)
BATCH = 200


def make_rows(rows: int, columns: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of some columns, 20 % of its values wrong."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, columns))
    y = np.tanh(X[:, :10] @ random.normal(size=10)) + X[:, 11] * X[:, 12] + 0.1 * random.normal(size=rows)
    wrong = random.choice(rows, rows // 5, replace=False)
    y[wrong] = random.uniform(-5, 5, len(wrong))
    return X.astype(dtype), y


def estimators(epochs: int) -> dict[str, Any]:
    """What is timed, by name."""
    ours = {"hidden": HIDDEN, "batch_size": BATCH, "epochs": epochs, "random_state": 0}
    return {
        "RobustRegressor prl-l": RobustRegressor("prl-l", 0.2, **ours),
        "RobustRegressor standard": RobustRegressor("standard", **ours),
        "MLPRegressor": MLPRegressor(
            hidden_layer_sizes=HIDDEN, batch_size=BATCH, max_iter=epochs, n_iter_no_change=epochs + 1, random_state=0
        ),
    }


def measure(rows: int, columns: int, epochs: int, turns: int, dtype: str) -> dict[str, float]:
    """Seconds of a fit, the best of ``turns``."""
    X, y = make_rows(rows, columns, dtype)
    seconds: dict[str, float] = {}
    warnings.simplefilter("ignore", ConvergenceWarning)  # so few epochs are the point
    for _ in range(turns):
        for name, estimator in estimators(epochs).items():
            start = time.perf_counter()
            estimator.fit(X, y)
            seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    found: dict[str, Any] = {"settings": {**vars(options), **machine}}
    for dtype in ("float64", "float32"):
        seconds = measure(options.rows, options.columns, options.epochs, options.turns, dtype)
        found[dtype] = seconds
        for name, time_ in seconds.items() if not options.json else ():
            ratio = time_ / seconds["MLPRegressor"]
            print(f"{dtype}  {name:25} {time_:7.2f} s   {ratio:.2f} of MLPRegressor's")
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
