"""Choosing the drop rate without knowing the corruption: what "auto" and other criteria pick, and what that costs.

    python benchmarks/rate.py --sets digits                                   # ten minutes on one core
    python benchmarks/rate.py --sets kin8nm power_plant --data-dir data       # CSV files, the target last
    python benchmarks/rate.py --quick                                         # digits, three cells
    python benchmarks/rate.py --cost 10000 100000                             # what "auto" costs, nothing else

A cell is a data set, a corruption, a rate and a seed. In each:
- six networks, drop rates 0 to 0.5, are trained on 80 % of the rows; each criterion picks one by the other 20 %, which
  are as corrupted, and its regret is how far that one is below the best of the six on clean test rows;
- "auto" picks by itself (``gradsieve.estimators.auto_rate``); its run on all rows stands beside that at the true rate
  and beside Standard. The truth is used here alone.
One JSON line a cell; cells that the file has are not run again. The table is printed in the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradsieve import CORRUPTIONS, DATASETS, RobustRegressor, choose
from gradsieve.choosing import RATES
from gradsieve.data import DataSet, Task
from gradsieve.estimators.auto_rate import choose_rate
from gradsieve.estimators.fitting import Plan, fit_networks, mean_outputs
from gradsieve.estimators.scaling import Scale, input_scale, scale_inputs, scale_targets, target_scale
from gradsieve.metrics import METRICS
from gradsieve.models.landmark_cnn import landmark_cnn
from gradsieve.models.mlp import mlp
from gradsieve.seeds import generator

TABLES = {
    "power_plant": "",  # the last column
    "kin8nm": "",
    "naval_propulsion": "gt_compressor_decay,gt_turbine_decay",
    "california_housing": "",
}
KINDS: dict[Task, tuple[str, ...]] = {
    "classification": ("symmetric", "pairflip", "instance"),
    "regression": ("linadv", "signflip", "uninoise", "mixture", "pairflip"),
}
CORRUPTION_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45)
EPOCHS = {"digits": 60, "mnist": 20, "landmarks": 20}  # others 40
NEAR = {"classification": 0.01, "regression": 0.02}  # of accuracy, of R2
HARM = {"classification": 0.02, "regression": 0.02}


@dataclass(frozen=True)
class Cell:
    """What is measured at once."""

    data: str
    corruption: str
    rate: float
    seed: int
    rows: int  # at most
    epochs: int

    @property
    def key(self) -> str:
        return "/".join(map(str, vars(self).values()))


@dataclass(frozen=True)
class Problem:
    """A cell's rows as networks read them."""

    plan: Plan
    inputs: NDArray
    given: NDArray  # classes, or targets in the units of the clean ones
    clean: NDArray
    scale: Scale | None
    test_inputs: NDArray
    test_targets: NDArray

    def targets_at(self, drops: bool, rows: slice = slice(None)) -> NDArray:
        given = self.given[rows]
        return given if self.scale is None else scale_targets(given, self.scale, drops)

    def network(self, number: int) -> torch.nn.Module:
        shape = self.inputs.shape[1:]
        return (landmark_cnn if len(shape) > 1 else mlp)(shape, self.plan.outputs)

    def answers(self, networks: Sequence[torch.nn.Module], inputs: NDArray) -> NDArray:
        """Probabilities, or outputs in the units of the targets."""
        outputs = mean_outputs(networks, inputs, self.plan.task)
        return outputs if self.scale is None else self.scale.invert(outputs)

    def fit(self, rate: float, rows: slice = slice(None)) -> list[torch.nn.Module]:
        plan = replace(self.plan, drop_rate=rate)
        return fit_networks(plan, self.inputs[rows], self.targets_at(rate > 0, rows), self.network).networks

    def test(self, networks: Sequence[torch.nn.Module]) -> float:
        """Accuracy or R2 on the clean test rows."""
        answers, targets = self.answers(networks, self.test_inputs), torch.from_numpy(self.test_targets)
        return float(METRICS[self.plan.task].function(torch.from_numpy(answers), targets))


def load(name: str, folder: Path | None) -> DataSet:
    if name not in TABLES:
        return DATASETS[name](folder)
    if folder is None:
        raise SystemExit(f"{name}.csv: say where it is with --data-dir.")
    path = folder / f"{name}.csv"
    return DATASETS["table"](path, target=TABLES[name] or path.open().readline().strip().split(",")[-1])


def make_problem(cell: Cell, data: DataSet) -> Problem:
    """Corrupt some rows of a data set, and scale all as the estimators do."""
    chosen = torch.randperm(len(data.train), generator=generator(cell.seed, "rate", "rows"))[: cell.rows]
    inputs, clean = data.train.inputs[chosen], data.train.targets[chosen]
    given = CORRUPTIONS[cell.corruption](
        inputs, clean, cell.rate, generator(cell.seed, "rate", cell.corruption)
    ).targets
    train, test = scaled(inputs, data.test.inputs)
    return Problem(
        plan=Plan(data.task, data.outputs, epochs=cell.epochs, seed=cell.seed, device="cpu"),
        inputs=train,
        given=given.numpy(),
        clean=clean.numpy(),
        scale=target_scale(given.double().numpy()) if data.task == "regression" else None,
        test_inputs=test,
        test_targets=data.test.targets.numpy(),
    )


def scaled(train: torch.Tensor, test: torch.Tensor) -> tuple[NDArray, NDArray]:
    """Columns scaled robustly; images as they are."""
    if train.dim() > 2:
        return train.numpy(), test.numpy()
    scale = input_scale(train.double().numpy())
    return scale_inputs(train.numpy(), scale), scale_inputs(test.numpy(), scale)


def distances(answers: NDArray, given: NDArray) -> NDArray:
    """(M, N) of (M, N, q) predictions from targets (N, q)."""
    return np.sqrt(((answers - given) ** 2).sum(2))


def chances(answers: NDArray, given: NDArray) -> NDArray:
    """(M, N): how probable each model finds the given labels."""
    return answers[:, np.arange(len(given)), given]


Criterion = Callable[[NDArray, NDArray], int]

VOTES: dict[str, Criterion] = {
    "vote": lambda answers, given: choose(answers, given).best,
    "vote, half an error for smaller rates": lambda answers, given: choose(answers, given, prefer="first").best,
    "vote, half an error for rate 0": lambda answers, given: choose(answers, given, prefer="baseline").best,
}
CRITERIA: dict[Task, dict[str, Criterion]] = {
    "classification": {
        **VOTES,  # for classes: the mean probability of the given label
        "squared disagreement": lambda answers, given: choose(answers, np.eye(answers.shape[2])[given]).best,
        "accuracy": lambda answers, given: int((answers.argmax(2) == given).mean(1).argmax()),
        "cross-entropy": lambda answers, given: int(np.log(chances(answers, given) + 1e-12).mean(1).argmax()),
    },
    "regression": {
        **VOTES,
        "mean absolute error": lambda answers, given: int(distances(answers, given).mean(1).argmin()),
        "median residual": lambda answers, given: int(np.median(distances(answers, given), 1).argmin()),
        "mean squared error": lambda answers, given: int((distances(answers, given) ** 2).mean(1).argmin()),
    },
}
FIXED = {"fixed 0.2": 2, "fixed 0.3": 3, "Standard": 0}  # places in RATES


def measure(cell: Cell, data: DataSet) -> dict[str, Any]:
    """One line of the file."""
    problem = make_problem(cell, data)
    held_out = len(problem.given) // 5
    shown, hidden = slice(held_out, None), slice(held_out)  # rows are in random order already
    candidates = [problem.fit(rate, shown) for rate in RATES]
    answers = np.stack([problem.answers(each, problem.inputs[hidden]) for each in candidates])
    criteria = CRITERIA[data.task]
    picks = {name: criterion(answers, problem.given[hidden]) for name, criterion in criteria.items()} | FIXED

    @cache
    def whole(rate: float) -> tuple[float, float, float]:
        """A run on all rows: its test metric, its error on clean rows, its seconds."""
        began = time.perf_counter()
        networks = problem.fit(rate)
        seconds = time.perf_counter() - began
        error = 0.0
        if data.task == "regression":
            off = problem.answers(networks, problem.test_inputs) - problem.test_targets
            error = float(np.sqrt((off**2).sum(1).mean()))
        return problem.test(networks), error, seconds

    known, error, known_seconds = whole(cell.rate)
    began = time.perf_counter()
    pick = choose_rate(problem.plan, problem.inputs, problem.targets_at, problem.network)
    pick_seconds = time.perf_counter() - began
    return {
        "key": cell.key,
        "task": data.task,
        **vars(cell),
        "test_of_rate": [problem.test(each) for each in candidates],
        "picks": picks,
        "known": known,
        "standard": whole(0.0)[0],
        "auto": whole(pick.rate)[0],
        "winner": whole(pick.winner)[0],
        "pick": pick.to_json(),
        "moved": moved(problem, error),
        "seconds": {"known": known_seconds, "pick": pick_seconds, "auto": whole(pick.rate)[2]},
    }


def moved(problem: Problem, error: float) -> float:
    """The share of rows whose label changed, or whose target moved by more than three times the clean residual."""
    if problem.scale is None:
        return float((problem.given != problem.clean).mean())
    return float((np.sqrt(((problem.given - problem.clean) ** 2).sum(1)) > 3 * error).mean())


def regrets(lines: list[dict[str, Any]], name: str) -> NDArray:
    """How far a criterion's pick is below the best of the six, for each cell; an R2 below -1 counts as -1."""
    tests = [np.maximum(line["test_of_rate"], -1) for line in lines]
    return np.array([test.max() - test[line["picks"][name]] for test, line in zip(tests, lines, strict=True)])


def markdown(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Two tables for each task: the criteria, and "auto" beside the true rate and Standard."""
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        groups = {
            "clean": [line for line in own if line["rate"] == 0],
            "to 0.3": [line for line in own if 0 < line["rate"] <= 0.3],
            "above": [line for line in own if line["rate"] > 0.3],
        }
        groups = {name: group for name, group in groups.items() if group}
        near, percent = NEAR[task], 100 if task == "classification" else 1
        unit = "points" if task == "classification" else "R2"
        counts = ", ".join(f"{name} {len(group)}" for name, group in groups.items())
        yield f"{task}, regret in {unit}: mean, share within {near * percent:g}, worst. Cells: {counts}."
        yield ""
        yield f"| criterion | {' | '.join(groups)} |"
        yield f"| --- |{' --- |' * len(groups)}"
        for name in own[0]["picks"]:
            found = [regrets(group, name) for group in groups.values()]
            cells = [
                f"{percent * each.mean():.3f}, {(each <= near).mean():.0%}, {percent * each.max():.2f}"
                for each in found
            ]
            yield f"| {name} | {' | '.join(cells)} |"
        yield ""
        yield f"| {task}: auto | {' | '.join(groups)} |"
        yield f"| --- |{' --- |' * len(groups)}"
        columns = [summarise(group, near, HARM[task], percent) for group in groups.values()]
        for name in columns[0]:
            yield f"| {name} | {' | '.join(column[name] for column in columns)} |"
        yield ""


def summarise(lines: list[dict[str, Any]], near: float, harm: float, percent: int) -> dict[str, str]:
    """What "auto" did in a group of cells."""
    auto, known, plain = (np.maximum([line[name] for line in lines], -1) for name in ("auto", "known", "standard"))
    off = np.array([line["pick"]["estimate"] - line["moved"] for line in lines])
    cost = [(line["seconds"]["pick"] + line["seconds"]["auto"]) / line["seconds"]["known"] for line in lines]
    return {
        "mean of auto / true rate / Standard": f"{auto.mean():.3f} / {known.mean():.3f} / {plain.mean():.3f}",
        "mean at the winner of the vote": f"{np.maximum([line['winner'] for line in lines], -1).mean():.3f}",
        f"within {near * percent:g} of the true rate's run": f"{(auto >= known - near).sum()} of {len(lines)}",
        "worst against the true rate's run": f"{percent * (auto - known).min():.3f}",
        f"below Standard by more than {harm * percent:g}": f"{(auto < plain - harm).sum()}",
        "worst against Standard": f"{percent * (auto - plain).min():.3f}",
        "estimate: mean error, within 0.05": f"{np.abs(off).mean():.3f}, {(np.abs(off) <= 0.05).mean():.0%}",
        "time beside the known rate's run": f"{np.median(cost):.1f}",
        "warned": f"{sum(bool(line['pick']['warning']) for line in lines)}",
    }


def cost(rows: int, epochs: int) -> str:
    """Processor seconds of a fit with "auto" and with a known rate: 50 columns, a fifth of the targets wrong."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 50))
    y = np.tanh(X[:, :10] @ random.normal(size=10)) + X[:, 11] * X[:, 12]
    y[: rows // 5] = random.uniform(-5, 5, rows // 5)
    RobustRegressor(epochs=1).fit(X[:500], y[:500])  # the first fit also imports
    seconds = {}
    for rate in (0.2, "auto"):
        began = time.process_time()
        model = RobustRegressor(drop_rate=rate, epochs=epochs, random_state=0).fit(X, y)
        seconds[rate] = time.process_time() - began
    ratio = seconds["auto"] / seconds[0.2]
    times = f"{seconds['auto']:.1f} s against {seconds[0.2]:.1f} s, {ratio:.2f} times"
    return f"{rows} rows, {epochs} epochs: {times}; dropping {model.drop_rate_:g}"


def cells(options: argparse.Namespace, name: str, data: DataSet) -> Iterator[Cell]:
    epochs = options.epochs or EPOCHS.get(name, 40)
    kinds = [kind for kind in KINDS[data.task] if not options.corruptions or kind in options.corruptions]
    if data.task == "regression" and data.outputs < 4:  # no landmarks to confuse
        kinds = [kind for kind in kinds if kind != "pairflip"]
    rows = min(options.rows, len(data.train))
    for seed in options.seeds:
        for rate in options.rates:
            for kind in kinds if rate else ["none"]:
                yield Cell(name, kind, rate, seed, rows, epochs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=["digits", "mnist", "landmarks", *TABLES], default=["digits"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--corruptions", nargs="+", default=[])
    parser.add_argument("--rates", nargs="+", type=float, default=list(CORRUPTION_RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=12_000, help="most training rows of a set")
    parser.add_argument("--epochs", type=int, help="60 for digits, 20 for MNIST and landmarks, 40 for tables")
    parser.add_argument("--out", type=Path, default=Path("runs/rate.jsonl"))
    parser.add_argument("--quick", action="store_true", help="digits, pairflip 0.3, symmetric 0.3 and clean, one seed")
    parser.add_argument("--cost", nargs="+", type=int, metavar="ROWS", help="time fits of so many rows")
    options = parser.parse_args()
    if options.cost:
        for rows in options.cost:
            print(cost(rows, options.epochs or 10), flush=True)
        return
    if options.quick:
        options.sets, options.seeds, options.rates = ["digits"], [0], [0.0, 0.3]
        options.corruptions, options.epochs = ["symmetric", "pairflip"], 20
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done, wanted = {line["key"]: line for line in lines}, []
    for name in options.sets:
        data = load(name, options.data_dir)
        for cell in cells(options, name, data):
            wanted.append(cell.key)
            if cell.key in done:
                continue
            line = done[cell.key] = measure(cell, data)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"{cell.key}  auto {line['auto']:.3f} at {line['pick']['rate']:g}, true rate {line['known']:.3f}, "
                f"Standard {line['standard']:.3f}; estimate {line['pick']['estimate']:.3f} of {line['moved']:.3f}",
                flush=True,
            )
    print("\n" + "\n".join(markdown([done[key] for key in wanted])))


if __name__ == "__main__":
    main()
