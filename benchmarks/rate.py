"""Choosing the drop rate without knowing the corruption: what "auto" and other criteria pick, and what that costs.

    python benchmarks/rate.py --data-dir data --jobs 12        # everything: three to four hours of one core
    python benchmarks/rate.py --sets digits --seeds 0          # a part of it
    python benchmarks/rate.py --show                           # the tables of what there is
    python benchmarks/rate.py --show --into docs/unknown-rate-measured.md
    python benchmarks/rate.py --cost 10000 100000              # what "auto" costs, nothing else

A cell is a set, a corruption, a rate and a seed. In each, "auto" races its candidates
(``gradsieve.estimators.auto_rate``), and its run on all rows stands beside that at the true rate and beside Standard.
Then the first network of every candidate is trained to the end: six, drop rates 0 to 0.5. Every criterion picks one by
the rows that these have not seen, which are as corrupted; its regret is how far that one is below the best of the six
on clean test rows. The truth is used here alone.

One JSON file a cell in the folder ``--out``. Cells that are there are not run again, and one that fails stops no other.
Killed, a run loses the cells that are under way, and the same command goes on with the rest.
``--data-dir`` holds the tables as CSV files and MNIST's four files, as they come; digits and landmarks need none.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: cells run side by side, and few threads are quickest

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rate_tables import insert, markdown

from gradsieve import CORRUPTIONS, DATASETS, RobustClassifier, RobustRegressor, choose
from gradsieve.choosing import RATES
from gradsieve.choosing.pick import RatePick
from gradsieve.counts import part
from gradsieve.data import DataSet, Task
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.auto_rate import let_vote, line_up
from gradsieve.estimators.decorrelating import decorrelation
from gradsieve.estimators.fitting import Fits
from gradsieve.estimators.plan import Plan
from gradsieve.estimators.scaling import Scale, robust_scale, scale_inputs, scale_targets, target_scale
from gradsieve.metrics import METRICS
from gradsieve.models.landmark_cnn import landmark_cnn
from gradsieve.models.mlp import mlp
from gradsieve.seeds import generator

KINDS: dict[Task, tuple[str, ...]] = {
    "classification": ("symmetric", "pairflip", "instance"),
    "regression": ("linadv", "signflip", "uninoise", "mixture", "pairflip"),
}
CORRUPTION_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45)
OUT = Path("runs/rate")
TURNS = 9  # of a timing


@dataclass(frozen=True)
class Bench:
    """A set and how it is learnt: sizes are such that a cell takes less than a minute of one core."""

    data: str
    network: str = "mlp"
    rows: int = 3000  # at most
    epochs: int = 40
    learning_rate: float = 1e-3
    target: str = ""  # of a table; none: the last column
    seconds: int = 17  # that a cell takes, about


BENCHES = {
    "digits": Bench("digits", seconds=24),
    "digits-cnn": Bench("digits", "cnn", epochs=30, seconds=33),
    "mnist": Bench("mnist", rows=4000, epochs=15),
    "mnist-cnn": Bench("mnist", "cnn", rows=4000, epochs=10, seconds=20),
    "landmarks": Bench("landmarks", "cnn", rows=2000, epochs=20, learning_rate=3e-3, seconds=42),
    "power_plant": Bench("table"),
    "kin8nm": Bench("table"),
    "naval_propulsion": Bench("table", target="gt_compressor_decay,gt_turbine_decay"),
    "california_housing": Bench("table"),
}


@dataclass(frozen=True)
class Cell:
    """What is measured at once."""

    data: str  # a name in BENCHES
    corruption: str
    rate: float
    seed: int
    rows: int
    epochs: int

    @property
    def key(self) -> str:
        return "_".join(map(str, vars(self).values()))


@dataclass(frozen=True)
class Problem:
    """A cell's rows as networks read them."""

    plan: Plan
    build: Callable[..., torch.nn.Module]
    inputs: NDArray
    given: NDArray  # classes, or targets in the units of the clean ones
    clean: NDArray
    scale: Scale | None
    test_inputs: NDArray
    test_targets: NDArray

    def targets_at(self, drops: bool) -> NDArray:
        return self.given if self.scale is None else scale_targets(self.given, self.scale, drops)

    def network(self, number: int) -> torch.nn.Module:
        return self.build(self.inputs.shape[1:], self.plan.outputs)

    def answers(self, networks: Sequence[torch.nn.Module], inputs: NDArray) -> NDArray:
        """Probabilities, or outputs in the units of the targets."""
        outputs = mean_outputs(networks, inputs, self.plan.task)
        return outputs if self.scale is None else self.scale.invert(outputs)

    @cached_property
    def fits(self) -> Fits:
        return Fits(self.plan, self.inputs, self.targets_at, self.network)

    def test(self, networks: Sequence[torch.nn.Module]) -> float:
        """Accuracy or R2 on the clean test rows."""
        answers, targets = self.answers(networks, self.test_inputs), torch.from_numpy(self.test_targets)
        return float(METRICS[self.plan.task].function(torch.from_numpy(answers), targets))

    def tested(self, networks: Sequence[torch.nn.Module]) -> tuple[float, float]:
        """The same, and of real targets the error on these rows."""
        if self.scale is None:
            return self.test(networks), 0.0
        off = self.answers(networks, self.test_inputs) - self.test_targets
        return self.test(networks), float(np.sqrt((off**2).sum(1).mean()))


@cache
def load(name: str, folder: Path | None) -> DataSet:
    bench = BENCHES[name]
    if bench.data == "landmarks":
        return DATASETS["landmarks"](None, train=bench.rows, size=24)
    if bench.data != "table":
        return DATASETS[bench.data](folder)
    if folder is None:
        raise SystemExit(f"{name}.csv: say where it is with --data-dir.")
    path = folder / f"{name}.csv"
    return DATASETS["table"](path, target=bench.target or path.open().readline().strip().split(",")[-1])


def make_problem(cell: Cell, data: DataSet) -> Problem:
    """Corrupt some rows of a data set, and scale all as the estimators do."""
    bench = BENCHES[cell.data]
    chosen = torch.randperm(len(data.train), generator=generator(cell.seed, "rate", "rows"))[: cell.rows]
    inputs, clean = data.train.inputs[chosen], data.train.targets[chosen]
    given = CORRUPTIONS[cell.corruption](
        inputs, clean, cell.rate, generator(cell.seed, "rate", cell.corruption)
    ).targets
    train, test = as_read(inputs, data.test.inputs, bench, data.task)
    rate = bench.learning_rate
    return Problem(
        plan=Plan(data.task, data.outputs, epochs=cell.epochs, learning_rate=rate, seed=cell.seed, device="cpu"),
        build=small_cnn if bench.network == "cnn" else mlp,
        inputs=train,
        given=given.numpy(),
        clean=clean.numpy(),
        scale=target_scale(given.double().numpy()) if data.task == "regression" else None,
        test_inputs=test,
        test_targets=data.test.targets.numpy(),
    )


def as_read(train: torch.Tensor, test: torch.Tensor, bench: Bench, task: Task) -> tuple[NDArray, NDArray]:
    """Columns as the estimators read them; images as they are, the digits' among them where a CNN reads them."""
    if train.dim() > 2:
        return train.numpy(), test.numpy()
    if bench.network == "cnn":
        return train.view(-1, 1, 8, 8).numpy(), test.view(-1, 1, 8, 8).numpy()
    scale = robust_scale(train.double().numpy())
    scaled = scale_inputs(train.numpy(), scale), scale_inputs(test.numpy(), scale)
    mixed = decorrelation(scaled[0]) if task == "regression" else None
    return (mixed.apply(scaled[0]), mixed.apply(scaled[1])) if mixed else scaled


def small_cnn(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return landmark_cnn(shape, outputs, width=0.25, features=128)


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
        **VOTES,
        "mean probability": lambda answers, given: int(chances(answers, given).mean(1).argmax()),
        # Doubled, so that they are not taken for probabilities by mistake.
        "squared disagreement": lambda answers, given: choose(2 * answers, 2 * np.eye(answers.shape[2])[given]).best,
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
    """Everything about a cell."""
    problem = make_problem(cell, data)
    start, electors = line_up(problem.fits)
    begun = cache(start)
    pick = let_vote(problem.fits, begun, electors)
    firsts = [begun(rate, electors.parts[0]) for rate in RATES]
    for first in firsts:
        first.train(1.0)
    answers, given = np.stack([first.predict() for first in firsts]), problem.targets_at(True)[firsts[0].voters.numpy()]
    picks = {name: criterion(answers, given) for name, criterion in CRITERIA[data.task].items()}
    picks["auto, among the six"] = RATES.index(pick.winner)

    @cache
    def whole(rate: float) -> tuple[float, float]:
        """A run on all rows: its test metric, and its error on clean rows."""
        return problem.tested(problem.fits.at(rate).networks)

    return {
        **vars(cell),
        "task": data.task,
        "test_of_rate": [problem.test(first.trainer.networks) for first in firsts],
        "picks": picks | FIXED,
        "known": whole(cell.rate)[0],
        "standard": whole(0.0)[0],
        "auto": whole(pick.rate)[0],
        "winner": whole(pick.winner)[0],
        "pick": pick.to_json(),
        "moved": moved(problem, whole(cell.rate)[1]),
        "moved_by_clean": moved(problem, clean_error(problem)),
    }


def clean_error(problem: Problem) -> float:
    """Of a run without a wrong target, on clean rows; 0 for classes."""
    if problem.scale is None:
        return 0.0
    clean = replace(problem, given=problem.clean, scale=target_scale(problem.clean.astype(np.float64)))
    return clean.tested(clean.fits.at(0.0).networks)[1]


def moved(problem: Problem, error: float) -> float:
    """The share of rows whose label changed, or whose target moved by more than three times the clean residual."""
    if problem.scale is None:
        return float((problem.given != problem.clean).mean())
    return float((np.sqrt(((problem.given - problem.clean) ** 2).sum(1)) > 3 * error).mean())


def run(cell: Cell, folder: Path | None, out: Path) -> str:
    """Measure a cell and write its file; one line about it."""
    torch.set_num_threads(1)
    began = time.monotonic()
    line = measure(cell, load(cell.data, folder))
    path = out / f"{cell.key}.json"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(line) + "\n")
    part.replace(path)  # whole or not at all
    pick = RatePick.from_json(line["pick"])
    return (
        f"{cell.key}  auto {line['auto']:.3f} at {pick.rate:g}, true rate {line['known']:.3f}, Standard "
        f"{line['standard']:.3f}; estimate {pick.estimate:.3f} of {line['moved']:.3f}; {time.monotonic() - began:.0f} s"
    )


def by_urgency(cells: Iterable[Cell], folder: Path | None) -> list[Cell]:
    """Should the run be cut off: classes first, later seeds first, long cells first."""

    def place(cell: Cell) -> tuple[bool, int, int]:
        return load(cell.data, folder).task != "classification", -cell.seed, -BENCHES[cell.data].seconds

    return sorted(cells, key=place)


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All that is wanted."""
    for seed in options.seeds:
        for name in options.sets:
            bench = BENCHES[name]
            data = load(name, options.data_dir)
            kinds = [kind for kind in KINDS[data.task] if kind in (options.corruptions or KINDS[data.task])]
            if data.task == "regression" and data.outputs == 1:  # nothing to swap
                kinds = [kind for kind in kinds if kind != "pairflip"]
            rows = min(options.rows or bench.rows, len(data.train))
            for rate in options.rates:
                for kind in kinds if rate else ["none"]:
                    yield Cell(name, kind, rate, seed, rows, options.epochs or bench.epochs)


def run_all(wanted: list[Cell], options: argparse.Namespace) -> None:
    """All cells that have no file yet, some side by side."""
    left = [cell for cell in wanted if not (options.out / f"{cell.key}.json").exists()]
    print(f"{len(left)} of {len(wanted)} cells to run", flush=True)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        tasks = {pool.submit(run, cell, options.data_dir, options.out): cell for cell in left}
        for task in as_completed(tasks):
            error = task.exception()
            print(f"{tasks[task].key}  failed: {error!r}" if error else task.result(), flush=True)


def cost(rows: int, epochs: int, wrong: float, task: Task) -> str:
    """Processor seconds of a fit with "auto" and at the known rate: 50 columns, this share of the targets wrong.

    The ratio is the median of those of turns in which both are fitted: from one to the next, times differ by half.
    """
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 50))
    y = np.tanh(X[:, :10] @ random.normal(size=10)) + X[:, 11] * X[:, 12]
    count = part(wrong, rows)
    if task == "classification":
        y = np.digitize(y, np.quantile(y, (0.2, 0.4, 0.6, 0.8)))
        y[:count] = (y[:count] + random.integers(1, 5, size=count)) % 5
    else:
        y[:count] = random.uniform(-5, 5, count)
    estimator = RobustClassifier if task == "classification" else RobustRegressor
    estimator(epochs=1).fit(X[:500], y[:500])  # the first fit also imports

    def seconds(rate: float | Literal["auto"]) -> float:
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator(drop_rate=rate, epochs=epochs, random_state=0).fit(X, y)
        return time.process_time() - began

    ratios = np.array([seconds("auto") / seconds(wrong) for _ in range(TURNS)])
    lower, middle, upper = np.quantile(ratios, (0.25, 0.5, 0.75))
    times = f"{middle:.2f} times a fit at a known rate ({lower:.2f} to {upper:.2f})"
    return f"{task}, {rows} rows, {wrong:.0%} wrong, {epochs} epochs: {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(BENCHES), default=list(BENCHES))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--corruptions", nargs="+", default=[])
    parser.add_argument("--rates", nargs="+", type=float, default=list(CORRUPTION_RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, help="most training rows, instead of the set's own")
    parser.add_argument("--epochs", type=int, help="instead of the set's own")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time, one core each")
    parser.add_argument("--out", type=Path, default=OUT, help="a folder, one file a cell")
    parser.add_argument("--show", action="store_true", help="run nothing: the tables of what is there")
    parser.add_argument("--into", type=Path, help="a page, between whose marks the tables are put")
    parser.add_argument("--mark", default="all", help="which marks of the page")
    parser.add_argument("--cost", nargs="+", type=int, metavar="ROWS", help="time fits of so many rows,")
    parser.add_argument("--wrong", type=float, default=0.2, help="of which this share is wrong,")
    parser.add_argument("--task", choices=list(KINDS), default="regression", help="of this task")
    options = parser.parse_args()
    if options.cost:
        for rows in options.cost:
            print(cost(rows, options.epochs or 10, options.wrong, options.task), flush=True)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.show:
        run_all(by_urgency(cells(options), options.data_dir), options)
    lines = [json.loads(path.read_text()) for path in sorted(options.out.glob("*.json"))]
    chosen = [
        line
        for line in lines
        if line["data"] in options.sets and line["seed"] in options.seeds and line["rate"] in options.rates
    ]
    tables = "\n".join(markdown(chosen))
    print("\n" + tables)
    if options.into:
        insert(tables, options.into, options.mark)


if __name__ == "__main__":
    main()
