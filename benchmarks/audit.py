"""Finding the corrupted rows: the audit of one run against cleanlab, with the rate unknown.

    python benchmarks/audit.py --data-dir data --out runs/audit       # everything, hours on one core
    python benchmarks/audit.py --only digits landmarks                # what needs no download
    python benchmarks/audit.py --what statistics --only digits        # score histories against snapshots
    python benchmarks/audit.py --what kinds                           # which kind of error a wrong landmark has
    python benchmarks/audit.py --what clean                           # what is flagged where nobody made errors
    python benchmarks/audit.py --what growth                          # time and memory up to ten million rows

Area under the ROC curve and average precision of every row's suspicion, against which rows were corrupted. cleanlab has
the same network and epochs in five folds, trained plainly, and once more trained robustly as ours is. Tables and
landmarks: cleanlab's regression scores, output by output, a row as bad as its worst; with one output, its CleanLearning
as well. Writes audit.json after every cell, goes on where it stopped, and prints the table in the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from torch import Tensor, nn

from gradsieve import CORRUPTIONS, DATASETS, RobustClassifier, RobustRegressor
from gradsieve.audit import Audit, audit_estimator
from gradsieve.audit.judging import Answers, judge, mean_scores, read_outputs
from gradsieve.corruptions.corruption import Corrupted, choose_rows, replace_rows
from gradsieve.data import DataSet, Task
from gradsieve.models.build import build
from gradsieve.seeds import generator
from gradsieve.training.feed import as_float
from gradsieve.training.ledger import Ledger

CLASSES = (("symmetric", 0.2), ("symmetric", 0.4), ("pairflip", 0.2), ("pairflip", 0.4), ("instance", 0.3))
AMOUNTS = (("linadv", 0.3), ("signflip", 0.3), ("uninoise", 0.3), ("mixture", 0.3))
TABLES = {  # the last column, unless named
    "power_plant": "",
    "kin8nm": "",
    "california_housing": "",
    "naval_propulsion": "gt_compressor_decay,gt_turbine_decay",
}
SETTINGS = {
    "digits": CLASSES,
    "mnist": CLASSES,
    **dict.fromkeys(TABLES, AMOUNTS),
    "landmarks": (*AMOUNTS, ("pairflip", 0.3)),
}
TIMED = ("gradsieve", "cleanlab")  # in turn, where a fit is so short that
SHORT = 2000  # rows or fewer make it a matter of a second,
SHORT_TIMES = 5  # so often
KINDS = {"signflip": "sign flipped", "pairflip": "swapped", "scaled": "scaled", "uninoise": "random"}
Found = tuple[np.ndarray, np.ndarray | None]  # how bad each row is, and which are flagged


@dataclass(frozen=True)
class Case:
    """Rows some of whose targets are wrong, and which those are."""

    name: str
    data: DataSet
    inputs: Tensor
    given: Tensor
    is_wrong: np.ndarray
    options: argparse.Namespace

    @property
    def rows(self) -> np.ndarray:
        """(N, d) the inputs, flat."""
        return as_float(self.inputs).flatten(1).numpy()

    @property
    def y(self) -> np.ndarray:
        """Classes, or one target as a column, or several."""
        return self.given.squeeze(-1).numpy() if self.given.dim() == 2 else self.given.numpy()

    def estimator(self) -> Any:
        """Ours, with a network for images where points are to be found in them."""
        options = self.options
        settings = {"epochs": options.epochs, "random_state": options.seed, "drop_rate": options.drop_rate}
        if self.data.task == "classification":
            return RobustClassifier(**settings, decorrelate=options.decorrelate == "all")
        if self.inputs.dim() == 2:  # said for cleanlab's network, whose rate is not learnt
            return RobustRegressor(**settings, decorrelate=options.decorrelate != "none")
        recipe = DATASETS["landmarks"].recipe
        settings |= {"batch_size": recipe.batch_size, "learning_rate": recipe.learning_rate}
        return RobustRegressor(module=FaceNetwork(tuple(self.inputs.shape[1:])), **settings)


@dataclass(frozen=True)
class FaceNetwork:
    """Builds the landmarks' network for rows that were made flat."""

    shape: tuple[int, ...]

    def __call__(self, features: tuple[int, ...], outputs: int) -> nn.Module:
        options = DATASETS["landmarks"].recipe.model_options
        return nn.Sequential(nn.Unflatten(1, self.shape), build("landmark-cnn", self.shape, outputs, options))


def cases(options: argparse.Namespace, settings: dict[str, Any]) -> Iterator[Case]:
    for name, kinds in settings.items():
        if options.only and name not in options.only:
            continue
        data = load(name, options.data_dir)
        rows = torch.randperm(len(data.train), generator=generator(options.seed, "audit", "rows"))[: options.rows]
        inputs, targets = data.train.inputs[rows], data.train.targets[rows]
        for kind, rate in kinds:
            given, is_wrong = corrupt(kind, data, inputs, targets, rate, options.seed)
            yield Case(f"{name}/{kind} {rate:g}", data, inputs, given, is_wrong.numpy(), options)


def load(name: str, folder: Path | None) -> DataSet:
    if folder is None and name not in ("digits", "landmarks"):
        raise SystemExit(f"{name} needs --data-dir, or leave it out with --only.")
    if name not in TABLES:
        return DATASETS[name](folder / name if name == "mnist" and folder else None)
    path = Path(folder or ".") / f"{name}.csv"
    return DATASETS["table"](path, target=TABLES[name] or path.open().readline().strip().split(",")[-1])


def corrupt(kind: str, data: DataSet, inputs: Tensor, targets: Tensor, rate: float, seed: int) -> Corrupted:
    options = {"classes": data.outputs} if data.task == "classification" else {}
    corruption = scaled if kind == "scaled" else CORRUPTIONS[kind]
    return corruption(inputs, targets, rate, generator(seed, "audit", kind), **options)


def scaled(inputs: Tensor, targets: Tensor, rate: float, generator: torch.Generator) -> Corrupted:
    """Multiply all targets of a row by one factor between 1.5 and 3."""
    rows = choose_rows(rate, len(targets), generator)
    return replace_rows(targets, rows, targets[rows] * (1.5 + 1.5 * torch.rand(len(rows), 1, generator=generator)))


# Who finds them


def contenders(case: Case) -> dict[str, Callable[[], Found]]:
    """Everybody who says how bad each row is."""
    X, y, seed, model = case.rows, case.y, case.options.seed, case.estimator()
    plain = clone(model).set_params(method="standard", drop_rate=0.0)
    is_classes = case.data.task == "classification"
    score = cleanlab_classes if is_classes else cleanlab_amounts

    def ours() -> Found:
        audit = audit_estimator(model.fit(X, y), X, y)
        return audit.suspicion, audit.flagged

    found: dict[str, Callable[[], Found]] = {
        "gradsieve": ours,
        "cleanlab": lambda: score(y, folded(plain, X, y, seed)),
        "cleanlab, our network": lambda: score(y, folded(clone(model), X, y, seed)),
    }
    if not is_classes and y.ndim == 1:
        found["CleanLearning"] = lambda: cleanlab_learning(plain, X, y, seed)
    return found


def folded(model: Any, X: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    """Out-of-sample probabilities or predictions in five folds."""
    is_classes = isinstance(model, RobustClassifier)
    folds = (StratifiedKFold if is_classes else KFold)(5, shuffle=True, random_state=seed)
    return cross_val_predict(model, X, y, cv=folds, method="predict_proba" if is_classes else "predict")


def cleanlab_classes(labels: np.ndarray, probabilities: np.ndarray) -> Found:
    from cleanlab.filter import find_label_issues  # type: ignore[import-not-found]
    from cleanlab.rank import get_label_quality_scores  # type: ignore[import-not-found]

    return -get_label_quality_scores(labels, probabilities), find_label_issues(labels, probabilities, n_jobs=1)


def cleanlab_amounts(given: np.ndarray, predictions: np.ndarray) -> Found:
    from cleanlab.regression.rank import get_label_quality_scores  # type: ignore[import-not-found]

    pairs = zip(given.reshape(len(given), -1).T, predictions.reshape(len(given), -1).T, strict=True)
    return -np.min([get_label_quality_scores(column, predicted) for column, predicted in pairs], axis=0), None


def cleanlab_learning(model: Any, X: np.ndarray, y: np.ndarray, seed: int) -> Found:
    from cleanlab.regression.learn import CleanLearning  # type: ignore[import-not-found]

    issues = CleanLearning(model, seed=seed).find_label_issues(X, y)
    return -issues["label_quality"].to_numpy(), issues["is_label_issue"].to_numpy()


def measured(case: Case, finds: dict[str, Callable[[], Found]]) -> dict[str, dict[str, Any]]:
    """How well each finds the wrong rows, and the seconds of the processor that it took in every round.

    They take turns, so that what else the machine does meets all of them.
    """
    seconds: dict[str, list[float]] = {who: [] for who in finds}
    cells = {}
    for _ in range(case.options.times or (SHORT_TIMES if len(case.given) <= SHORT else 1)):
        for who, find in finds.items():
            start = time.process_time()
            badness, flagged = find()
            seconds[who].append(time.process_time() - start)
            cells[who] = figures(case, badness, flagged)
    return {who: {"seconds": seconds[who], **cell} for who, cell in cells.items()}


def figures(case: Case, badness: np.ndarray, flagged: np.ndarray | None) -> dict[str, float]:
    found = {
        "auroc": float(roc_auc_score(case.is_wrong, badness)),
        "ap": float(average_precision_score(case.is_wrong, badness)),
    }
    if flagged is not None:
        found |= {"precision": share(case.is_wrong[flagged]), "recall": share(flagged[case.is_wrong])}
    return found


def share(is_so: np.ndarray) -> float:
    return float(is_so.mean()) if len(is_so) else 0.0


def comparison(options: argparse.Namespace, found: Callable[[str, Callable[[], Any]], None]) -> None:
    for model in (RobustRegressor(epochs=5), RobustClassifier(epochs=5)):  # the first fit of a process loads what
        X, y = np.random.default_rng(0).normal(size=(500, 4)), np.arange(500) % 2  # others then have
        audit_estimator(model.set_params(drop_rate=options.drop_rate).fit(X, y), X, y)
    for case in cases(options, SETTINGS):
        finds = {who: find for who, find in contenders(case).items() if not options.who or who in options.who}
        timed = {who: finds.pop(who) for who in TIMED if who in finds}
        for group in (timed, *({who: find} for who, find in finds.items())):
            measure = cache(partial(measured, case, group))
            for who in group:
                found(f"{case.name}/{who}", lambda measure=measure, who=who: measure()[who])


# What to make of histories


def statistics(options: argparse.Namespace, found: Callable[[str, Callable[[], Any]], None]) -> None:
    for case in cases(options, SETTINGS):
        found(case.name, lambda case=case: compared_statistics(case))


def compared_statistics(case: Case) -> dict[str, float]:
    """AUROC of every statistic of one run."""
    model, scores, dropped = fit_with_histories(case)
    outputs = model.predict_proba(case.rows) if case.data.task == "classification" else model.predict(case.rows)
    given = case.given.numpy()
    if case.data.task == "classification":
        score = read_outputs(case.data.task, given, outputs).score
        loss = -np.log(np.maximum(outputs[np.arange(len(given)), given], 1e-12))
    else:
        score = read_outputs(case.data.task, given, outputs.reshape(given.shape)).score
        loss = score**2
    half, mean = len(scores) // 2, np.nanmean(scores, axis=0)
    filled = np.where(np.isnan(scores), mean, scores)  # an epoch leaves a few rows over
    named = {
        "mean score": mean,
        "mean, first half": np.nanmean(scores[:half], axis=0),
        "mean, second half": np.nanmean(scores[half:], axis=0),
        "mean rank": filled.argsort(1, kind="stable").argsort(1, kind="stable").mean(0),
        "median score": np.nanmedian(scores, axis=0),
        "dropped share": dropped.mean(0),
        "last score": filled[-1],
        "final score": score,
        "final loss": loss,
        "mean x final": mean * score,
        "audit": audit_estimator(model, case.rows, case.y).suspicion,
    }
    return {name: float(roc_auc_score(case.is_wrong, badness)) for name, badness in named.items()}


def fit_with_histories(case: Case) -> tuple[Any, np.ndarray, np.ndarray]:
    """A fitted model, and (E, N) every row's score in every epoch and whether it was dropped: no ledger keeps these."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    record = Ledger.record

    def noted(self: Ledger, rows: Tensor, scores: Tensor | None, kept: Tensor) -> None:
        assert scores is not None
        is_dropped = torch.ones(len(rows), dtype=torch.bool).index_fill(0, kept, False)
        seen.append((rows, scores.float(), is_dropped))
        record(self, rows, scores, kept)

    Ledger.record = noted
    try:
        model = case.estimator().fit(case.rows, case.y)
    finally:
        Ledger.record = record
    rows, epochs = len(case.rows), model.n_iter_
    scores, dropped = np.full((epochs, rows), np.nan), np.zeros((epochs, rows), dtype=bool)
    for number, (batch, score, is_dropped) in enumerate(seen):
        epoch = number * epochs // len(seen)
        scores[epoch, batch], dropped[epoch, batch] = score, is_dropped
    return model, scores, dropped


# Kinds of error, and growth


def kinds(options: argparse.Namespace, found: Callable[[str, Callable[[], Any]], None]) -> None:
    for case in cases(options, {"landmarks": [(kind, 0.2) for kind in KINDS]}):
        found(case.name, lambda case=case: named_kinds(case))


def named_kinds(case: Case) -> dict[str, float]:
    """The share of flagged rows whose kind is the right one, and how they were flagged."""
    audit: Audit = audit_estimator(case.estimator().fit(case.rows, case.y), case.rows, case.y)
    right = KINDS[case.name.split("/")[1].split()[0]]
    assert audit.kind is not None
    named = (audit.kind == right) & case.is_wrong  # a row that is not wrong has no right kind
    return {
        "named right": share(named[audit.flagged]),
        "precision": share(case.is_wrong[audit.flagged]),
        "recall": share(audit.flagged[case.is_wrong]),
    }


def clean(options: argparse.Namespace, found: Callable[[str, Callable[[], Any]], None]) -> None:
    """Data sets as they are: what is flagged there is flagged by mistake, or wrong in the source."""
    for case in cases(options, {name: [(kinds[0][0], 0.0)] for name, kinds in SETTINGS.items()}):
        found(case.name.split("/")[0], lambda case=case: flagged_share(case))


def flagged_share(case: Case) -> dict[str, float]:
    model = case.estimator().fit(case.rows, case.y)
    return {"flagged": share(audit_estimator(model, case.rows, case.y).flagged), "drop rate": model.drop_rate_}


def growth(options: argparse.Namespace, found: Callable[[str, Callable[[], Any]], None]) -> None:
    for rows in (100_000, 1_000_000, 10_000_000):
        for task in ("classification", "regression"):
            found(f"{rows} rows, {task}", lambda rows=rows, task=task: alone(cost_of_audit, rows, task))


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own: the most memory that a process has held only grows."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def cost_of_audit(rows: int, task: Task) -> dict[str, float]:
    """Seconds of the processor and peak memory of a ledger, the audit of it (ten classes, two targets) and its CSV."""
    random = np.random.default_rng(0)
    is_classes = task == "classification"
    given = random.integers(0, 10, rows) if is_classes else random.normal(size=(rows, 2))
    before = memory()
    start = time.process_time()
    ledger = Ledger.empty(rows)
    for first in range(0, rows, 2**16):
        batch = torch.arange(first, min(first + 2**16, rows))
        ledger.record(batch, torch.rand(len(batch)), torch.arange(len(batch) // 2))
    if is_classes:
        suggested, confidence = random.integers(0, 10, rows, dtype=np.int32), random.random(rows, dtype=np.float32)
    else:
        suggested, confidence = given + 0.1 * random.normal(size=given.shape), None
        suggested[: rows // 5] *= -1
    answers = Answers(suggested, confidence, ledger.score_sum.numpy())
    counts = {"seen": ledger.judged.numpy(), "dropped": ledger.dropped.numpy()}
    names = tuple("0123456789") if is_classes else ("x", "y")
    audit = judge(task, names, given, answers, mean_scores(ledger), **counts, method="", run="")
    judged = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        audit.to_csv(Path(folder) / "audit.csv")
    return {
        "seconds": judged - start,
        "seconds to write": time.process_time() - judged,
        "peak MB beside the labels": (peak_memory() - before) / 1e6,
    }


def memory() -> int:
    """The bytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_memory() -> int:
    """The most that it has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# The table


def markdown(cells: dict[str, dict[str, Any]]) -> str:
    """A line for each setting."""
    if all(key.count("/") == 2 for key in cells):
        return comparison_table(cells)
    columns = list(dict.fromkeys(name for cell in cells.values() for name in cell))
    lines = [[key.replace("/", " "), *(f"{cell[name]:.3f}" for name in columns)] for key, cell in cells.items()]
    return table([["", *columns], *lines])


def comparison_table(cells: dict[str, dict[str, Any]]) -> str:
    """AUROC / average precision, ours with its share of cleanlab's time, the flags with their precision / recall."""
    names = list(dict.fromkeys(key.rpartition("/")[2] for key in cells))
    columns = [(who, of) for who in names for of in ("ranking", "flags") if of == "ranking" or who in TIMED]
    lines = [["data", "corruption", *(who if of == "ranking" else f"flags of {who}" for who, of in columns)]]
    for case in dict.fromkeys(key.rpartition("/")[0] for key in cells):
        found = {who: cells.get(f"{case}/{who}", {}) for who in names}
        lines.append([*case.split("/"), *(shown(found, who, of) for who, of in columns)])
    return table(lines)


def shown(found: dict[str, dict[str, Any]], who: str, of: str) -> str:
    first, second = ("auroc", "ap") if of == "ranking" else ("precision", "recall")
    if first not in found[who]:
        return ""
    digits = 3 if of == "ranking" else 2
    text = f"{found[who][first]:.{digits}f} / {found[who][second]:.{digits}f}"
    if (who, of) == ("gradsieve", "ranking") and found.get("cleanlab"):
        ours, theirs = found["gradsieve"]["seconds"], found["cleanlab"]["seconds"]
        text += f", {np.median(np.array(ours) / theirs):.2f}" if len(ours) == len(theirs) else ""
    return text


def table(lines: list[list[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], f"|{' --- |' * len(lines[0])}", *rows[1:]])


WHAT = {"comparison": comparison, "statistics": statistics, "kinds": kinds, "clean": clean, "growth": growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=WHAT, default="comparison")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/audit"))
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=[])
    parser.add_argument("--who", nargs="+", default=[], help="gradsieve, cleanlab, ...; all if not given")
    parser.add_argument("--rows", type=int, default=5000, help="most rows of a data set")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--drop-rate", type=lambda text: text if text.isalpha() else float(text), default="learn")
    parser.add_argument("--decorrelate", choices=("targets", "all", "none"), default="targets", help="whose inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", type=int, help=f"rounds of measuring; {SHORT_TIMES} up to {SHORT} rows, else 1")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.what}.json"
    settings = {name: getattr(options, name) for name in ("rows", "epochs", "drop_rate", "seed")}
    if options.decorrelate != "targets":
        settings["decorrelate"] = options.decorrelate
    stored = json.loads(path.read_text()) if path.exists() else {"settings": settings, "cells": {}}
    if stored["settings"] != settings:
        raise SystemExit(f"{path} holds other settings: {stored['settings']}. Choose another --out.")

    def found(key: str, measure: Callable[[], Any]) -> None:
        if key not in stored["cells"]:
            stored["cells"][key] = measure()
            print(key, json.dumps(stored["cells"][key]), flush=True)
            path.write_text(json.dumps(stored, indent=1))

    WHAT[options.what](options, found)
    print(f"\nSettings: {json.dumps(settings)}\n\n{markdown(stored['cells'])}")


if __name__ == "__main__":
    main()
