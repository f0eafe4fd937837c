"""The paper's experiments: the rows, methods and variants of each, and the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gradsieve.data import Task
from gradsieve.errors import InputError
from gradsieve.experiments.paper import TABLE1, TABLE2, TABLE3, TABLE4, Figures
from gradsieve.registry import unknown

Metric = Literal["r2", "accuracy", "epoch_seconds"]
Place = tuple[str, str, str]  # row, method, variant
CLEAN = "clean"  # the row without corruption, to compare all others with
FEATURES = "celeba-features"  # the data set of rows whose name has none


@dataclass(frozen=True)
class Variant:
    """How the runs of a column differ from the plain ones of their method."""

    name: str = ""
    drop_more: float = 0.0  # the drop rate minus the corruption rate
    method_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    ramp: int | None = None


@dataclass(frozen=True)
class Experiment:
    """A table: its rows, and as columns every method in every variant."""

    name: str
    title: str
    rows: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int
    metric: Metric
    paper: Mapping[Place, str]
    variants: tuple[Variant, ...] = (Variant(),)
    epochs: int | None = None  # if not those of the data set's recipe

    @property
    def task(self) -> Task:
        return "regression" if self.metric == "r2" else "classification"


def by_method(figures: Figures) -> dict[Place, str]:
    """The figures of a table without variants, by place."""
    return {(row, method, ""): text for row, cells in figures.items() for method, text in cells.items()}


TABLE2_PLACES = by_method(TABLE2)
HARD_ROWS = ("CF10-pf-45", "CF10-sym-50", "CF100-pf-45", "CF100-sym-50")
OFFSETS = {"eps-0.10": -0.1, "eps-0.05": -0.05, "eps": 0.0, "eps+0.05": 0.05, "eps+0.10": 0.1}
# Methods of the "passes" ablation: loss or gradient score, each with one network and with two.
SCORES = ("spl", "prl-l", "co-teaching", "co-prl-l")
AUTHORS_PASSES = {"spl": "index", "co-teaching": "index", "prl-l": "reforward", "co-prl-l": "reforward"}
GROUPNORM = Variant("groupnorm", model_options={"norm": "group"}, ramp=0)  # ramp 0: full drop rate from the first epoch

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            name="table1",
            title="Table 1: landmarks with corrupted coordinates, R2 on clean test rows",
            rows=(*TABLE1, CLEAN),
            methods=tuple(TABLE1["linadv-10"]),
            seeds=5,
            metric="r2",
            paper=by_method(TABLE1),
        ),
        Experiment(
            name="table2",
            title="Table 2: CIFAR with corrupted labels, accuracy on the clean test set",
            rows=tuple(TABLE2),
            methods=tuple(TABLE2["CF10-sym-30"]),
            seeds=3,
            metric="accuracy",
            paper=TABLE2_PLACES,
        ),
        Experiment(
            name="table3",
            title="Table 3: dropping more or less than is corrupted (eps), accuracy",
            rows=tuple(TABLE3),
            methods=("co-prl-l",),
            seeds=3,
            metric="accuracy",
            paper={
                (row, "co-prl-l", variant): text for row, cells in TABLE3.items() for variant, text in cells.items()
            },
            variants=tuple(Variant(name, drop_more=more) for name, more in OFFSETS.items()),
        ),
        Experiment(
            name="table4",
            title="Table 4: seconds per epoch, GroupNorm instead of BatchNorm",
            rows=tuple(TABLE4),
            methods=tuple(TABLE4["CF10-pf-45"]),
            seeds=1,
            metric="epoch_seconds",
            paper={(row, method, GROUPNORM.name): text for (row, method, _), text in by_method(TABLE4).items()},
            variants=(GROUPNORM,),
            epochs=30,  # enough steps that compiling them pays off on a GPU, so they are compiled as in other tables
        ),
        Experiment(
            name="passes",
            title="Passes: the score (loss or gradient) and the second pass (reforward) separated, accuracy",
            rows=HARD_ROWS,
            methods=SCORES,
            seeds=3,
            metric="accuracy",
            paper={
                (row, method, AUTHORS_PASSES[method]): TABLE2[row][method] for row in HARD_ROWS for method in SCORES
            },
            variants=tuple(Variant(passes, method_options={"passes": passes}) for passes in ("index", "reforward")),
        ),
        Experiment(
            name="no-batchnorm",
            title="No BatchNorm: co-teaching and Co-PRL(L) with and without it, accuracy",
            rows=HARD_ROWS,
            methods=("co-teaching", "co-prl-l"),
            seeds=3,
            metric="accuracy",
            # The paper mentions this appendix, but its figures are not in the LaTeX source that we have.
            paper=TABLE2_PLACES,
            variants=(Variant(), Variant("no-batchnorm", model_options={"norm": "none"})),
        ),
    )
}
# Both figures of the paper show the test curves of its first two tables: the same runs.
PARTS: Mapping[str, tuple[str, ...]] = {**{name: (name,) for name in EXPERIMENTS}, "curves": ("table1", "table2")}


def parts_of(name: str) -> list[Experiment]:
    """The tables that an experiment consists of: itself, or several."""
    if name not in PARTS:
        raise InputError(unknown("experiment", name, PARTS))
    return [EXPERIMENTS[part] for part in PARTS[name]]


def column_label(method: str, variant: str) -> str:
    """The name of a column."""
    return f"{method} {variant}".strip()
