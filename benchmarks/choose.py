"""Choosing between models of any kind by held-out rows with wrong targets: `choose`, and other criteria.

    python benchmarks/choose.py                     # digits and synthetic rows: three minutes of one core
    python benchmarks/choose.py --data-dir data     # three tables as well

In each cell, scikit-learn's models are fitted to half of the rows. A fifth vote, which are as wrong. The others, whose
targets are right, tell how far each criterion's choice is below the best model: its regret. For classes, the best of 40
epochs of a network is chosen, too.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the networks are small

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import HuberRegressor, LinearRegression, LogisticRegression
from sklearn.metrics import r2_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from gradsieve import CORRUPTIONS, choose
from gradsieve.data import Task
from gradsieve.seeds import generator

RATES = (0.0, 0.2, 0.4)
KINDS: dict[Task, tuple[str, ...]] = {
    "classification": ("symmetric", "pairflip"),
    "regression": ("linadv", "signflip", "uninoise", "mixture"),
}
TABLES = ("power_plant", "kin8nm", "california_housing")
MOST_ROWS, EPOCHS = 3000, 40


class Rows(NamedTuple):
    """A data set: columns, and classes or one real target."""

    inputs: NDArray
    targets: NDArray


def classifiers(seed: int) -> list[Any]:
    return [
        *(LogisticRegression(C=each, max_iter=300) for each in (0.001, 0.1, 10)),
        *(KNeighborsClassifier(each) for each in (1, 5, 30, 150)),
        *(RandomForestClassifier(60, max_depth=each, random_state=seed) for each in (3, None)),
        *(DecisionTreeClassifier(max_depth=each, random_state=seed) for each in (4, None)),
        GaussianNB(),
    ]


def regressors(seed: int) -> list[Any]:
    return [
        LinearRegression(),
        HuberRegressor(max_iter=1000),
        *(KNeighborsRegressor(each) for each in (1, 5, 30, 150)),
        *(RandomForestRegressor(60, max_depth=each, random_state=seed) for each in (3, None)),
        *(DecisionTreeRegressor(max_depth=each, random_state=seed) for each in (4, None)),
        *(HistGradientBoostingRegressor(loss=each, random_state=seed) for each in ("squared_error", "absolute_error")),
    ]


def epochs_of_a_network(seed: int, inputs: NDArray, given: NDArray, trained: int) -> NDArray:
    """(epochs, rows left, classes): what a network says after each epoch on the first ``trained`` rows."""
    torch.manual_seed(seed)
    classes = int(given.max()) + 1
    network = torch.nn.Sequential(torch.nn.Linear(inputs.shape[1], 256), torch.nn.ReLU(), torch.nn.Linear(256, classes))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    rows, labels, said = torch.tensor(inputs).float(), torch.tensor(given), []
    for _ in range(EPOCHS):
        for batch in torch.randperm(trained).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(rows[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            said.append(network(rows[trained:]).softmax(1).double().numpy())
    return np.stack(said)


def chances(answers: NDArray, given: NDArray) -> NDArray:
    """(M, N): how probable each model finds the given labels."""
    return answers[:, np.arange(len(given)), given]


Criterion = Callable[[NDArray, NDArray], int]

CRITERIA: dict[Task, dict[str, Criterion]] = {
    "classification": {
        "`choose`": lambda answers, given: choose(answers, given).best,
        "accuracy on the given labels": lambda answers, given: int((answers.argmax(2) == given).mean(1).argmax()),
        "cross-entropy": lambda answers, given: int(np.log(chances(answers, given) + 1e-6).mean(1).argmax()),
        "mean probability of the given labels": lambda answers, given: int(chances(answers, given).mean(1).argmax()),
    },
    "regression": {
        "`choose`": lambda answers, given: choose(answers, given).best,
        "mean absolute error": lambda answers, given: int(np.abs(answers - given).mean(1).argmin()),
        "median residual": lambda answers, given: int(np.median(np.abs(answers - given), 1).argmin()),
        "mean squared error": lambda answers, given: int(((answers - given) ** 2).mean(1).argmin()),
    },
}


def data_sets(folder: Path | None) -> Iterator[tuple[Task, str, Rows]]:
    yield "classification", "digits", Rows(*load_digits(return_X_y=True))
    few = make_classification(MOST_ROWS, 20, n_informative=6, n_classes=4, class_sep=0.7, random_state=0)
    yield "classification", "four classes", Rows(*few)
    uneven = make_classification(MOST_ROWS, 20, n_informative=6, n_classes=3, weights=[0.8, 0.15, 0.05], random_state=1)
    yield "classification", "uneven classes", Rows(*uneven)
    random = np.random.default_rng(0)
    inputs = random.normal(size=(MOST_ROWS, 8))
    curve = np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] + 0.5 * inputs[:, 3]
    yield "regression", "a curve", Rows(inputs, curve + 0.1 * random.normal(size=MOST_ROWS))
    for name in TABLES if folder else ():
        table = np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1)
        yield "regression", name, Rows(table[:, :-1], table[:, -1])


def candidates(task: Task, inputs: NDArray, given: NDArray, trained: int, seed: int) -> Iterator[tuple[str, NDArray]]:
    """What there is to choose from, with its answers for the rows that were not trained on."""
    if task == "classification":
        models = [each.fit(inputs[:trained], given[:trained]) for each in classifiers(seed)]
        yield "12 models", np.stack([each.predict_proba(inputs[trained:]) for each in models])
        yield f"{EPOCHS} epochs", epochs_of_a_network(seed, inputs, given, trained)
    else:
        models = [each.fit(inputs[:trained], given[:trained]) for each in regressors(seed)]
        yield "12 models", np.stack([each.predict(inputs[trained:]) for each in models])


def quality(task: Task, answers: NDArray, truth: NDArray) -> NDArray:
    """(M,) the accuracy, or R2, of each model."""
    if task == "classification":
        return (answers.argmax(2) == truth).mean(1)
    return np.array([max(-1.0, r2_score(truth, each)) for each in answers])


def regrets(task: Task, rows: Rows, kind: str, rate: float, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """How far each criterion's choice is below the best."""
    order = np.random.default_rng(seed).permutation(len(rows.targets))[:MOST_ROWS]
    inputs, clean = StandardScaler().fit_transform(rows.inputs[order]), rows.targets[order]
    truth = torch.tensor(clean if task == "classification" else (clean - clean.mean())[:, None] / clean.std())
    columns = torch.tensor(inputs).float()
    truth = truth if task == "classification" else truth.float()
    given = CORRUPTIONS[kind](columns, truth, rate, generator(seed, "choose", kind)).targets.numpy()
    given, clean = given.reshape(len(order)), truth.numpy().reshape(len(order))
    trained, voted = len(order) // 2, len(order) * 7 // 10
    for what, answers in candidates(task, inputs, given, trained, seed):
        votes, tests = np.split(answers, [voted - trained], axis=1)
        found = quality(task, tests, clean[voted:])
        picks = {name: criterion(votes, given[trained:voted]) for name, criterion in CRITERIA[task].items()}
        yield what, {name: float(found.max() - found[pick]) for name, pick in picks.items()}


def tables(found: dict[tuple[Task, str], list[tuple[float, dict[str, float]]]]) -> Iterator[str]:
    """Criterion by criterion: the mean regret at each rate, the worst, and how often it is near 0."""
    for (task, what), cells in found.items():
        scale, unit, near, digits = (100, "points", 1, 1) if task == "classification" else (1, "R2", 0.02, 3)
        heads = [*(f"{rate:.0%} wrong" for rate in RATES), "worst", f"within {near}"]
        yield f"\n| {task}, {what}: regret ({unit}) | {' | '.join(heads)} |\n|{' --- |' * (len(heads) + 1)}"
        for name in CRITERIA[task]:
            means = [scale * np.mean([each[name] for at, each in cells if at == rate]) for rate in RATES]
            all_of_it = scale * np.array([each[name] for _, each in cells])
            figures = [f"{each:.{digits}f}" for each in [*means, all_of_it.max()]]
            yield f"| {name} | {' | '.join(figures)} | {(all_of_it <= near).sum()} of {len(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="with the tables as CSV files, their last column the target")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    found: dict[tuple[Task, str], list[tuple[float, dict[str, float]]]] = {}
    warnings.simplefilter("ignore")  # scikit-learn's, about models that have not converged
    for task, name, rows in data_sets(options.data_dir):
        for seed in options.seeds:
            for rate in RATES:
                for kind in KINDS[task] if rate else KINDS[task][:1]:
                    for what, each in regrets(task, rows, kind, rate, seed):
                        found.setdefault((task, what), []).append((rate, each))
        print(name, flush=True)
    print("\n".join(tables(found)))


if __name__ == "__main__":
    main()
