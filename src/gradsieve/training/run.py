"""A run: all settings that determine its result, in one frozen value that is saved with the result."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from gradsieve.arguments import argument, spelled
from gradsieve.choosing import largest_rate
from gradsieve.corruptions import CORRUPTIONS
from gradsieve.counts import check_rate, exact
from gradsieve.data import DATASETS
from gradsieve.data.validate import check_count, check_positive
from gradsieve.errors import InputError
from gradsieve.methods import DEFAULT_METHOD, METHODS
from gradsieve.models import MODELS
from gradsieve.registry import sources, unknown
from gradsieve.schedule import Unit, find_schedule

Preset = Literal["authors", "proper"]
Decay = Literal["constant", "linear"]
Precision = Literal["auto", "fp32", "bf16"]
Augment = Literal["none", "crop-flip"]
Engine = Literal["auto", "plain", "captured"]
Compile = Literal["auto", "shared", "on", "off"]
BatchNorm = Literal["sync", "local"]
HALF = 0.5  # drop rates above it rise more slowly (slower_beyond_a_half)
SLOWLY = 3  # times as long as the usual ramp
MOST_RISING = 0.6  # the longest such ramp, as a share of the epochs
CHOICES = {
    "preset": get_args(Preset),
    "decay": get_args(Decay),
    "precision": get_args(Precision),
    "augment": get_args(Augment),
    "engine": get_args(Engine),
    "compile": get_args(Compile),
    "batchnorm": get_args(BatchNorm),
    "schedule_unit": get_args(Unit),
}


@dataclass(frozen=True)
class Run:
    """All settings of one training run. `make_run` fills them in from a data set's recipe and a preset."""

    data: str
    method: str
    model: str
    epochs: int
    batch_size: int
    learning_rate: float
    corruption: str = "none"
    rate: float = 0.0  # the share of corrupted rows, epsilon in the paper
    drop_rate: float | Literal["auto"] = 0.0  # the share of dropped rows, tau in the paper; auto: chosen from the data
    schedule: str = "ramp"
    ramp: int = 10
    schedule_unit: Unit = "epoch"
    decay: Decay = "linear"
    seed: int = 0
    corruption_seed: int = 0
    preset: Preset = "proper"
    data_dir: str | None = None
    data_options: Mapping[str, Any] = field(default_factory=dict)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    precision: Precision = "auto"
    augment: Augment = "none"  # crop-flip: images shifted and mirrored at random
    engine: Engine = "auto"  # captured: the whole step as one CUDA graph
    compile: Compile = "auto"  # auto: where it pays off within the run; shared: within a grid of such runs
    batchnorm: BatchNorm = "sync"  # over several ranks: sync takes statistics of all rows, local of each rank's own

    def __post_init__(self) -> None:
        check_run(self)

    @property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of the code of each user-defined part, by its place (module:attribute)."""
        return sources(self.data, self.method, self.model, self.corruption, self.schedule)

    def to_json(self) -> dict[str, Any]:
        """Plain values, and the sources if there are any: with other code it is another run."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        return {**values, "sources": self.sources} if self.sources else values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """The run that `to_json` wrote. Its sources are computed anew, from the code as it is now."""
        try:
            with spelled({}):  # values from a file: errors must not name them as command-line options
                return cls(**{name: values[name] for name in values if name != "sources"})
        except TypeError as error:  # not a mapping, or with unknown or missing names
            raise InputError(f"These are not the settings of a run ({error}).") from error


def make_run(
    data: str,
    method: str = DEFAULT_METHOD,
    *,
    corruption: str = "none",
    rate: float = 0.0,
    drop_rate: float | Literal["auto"] | None = None,
    preset: Preset = "proper",
    seed: int = 0,
    method_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    **given: Any,
) -> Run:
    """A complete run: the settings given, and for the rest those of the data set's recipe and the preset.

    ``authors`` trains as the authors' code does: constant learning rate, dropout on at test too, rows scored in train
    mode, SPL and co-teaching in one pass, the same corruption for every seed. ``proper`` switches dropout off at test,
    scores in eval mode, lowers the learning rate to 0 over the last 60 % of the epochs, and raises drop rates above one
    half three times as slowly: networks that have hardly learned anything would drop whole classes.
    """
    if preset not in CHOICES["preset"]:
        raise InputError(f"{argument('preset')} is {preset!r}, but must be one of: {', '.join(CHOICES['preset'])}.")
    recipe, kind = DATASETS[data].recipe, METHODS[method]
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(given.get("data_dir"), Path):
        given["data_dir"] = str(given["data_dir"])
    fields = {field.name for field in dataclasses.fields(Run)}
    for name in given:
        if name not in fields:
            raise InputError(unknown("setting of a run", name, dict.fromkeys(sorted(fields))))
    model = given.get("model", recipe.model)
    suggested = dict(recipe.model_options) if model == recipe.model else {}
    habits: dict[str, Any] = {}
    # As in the paper, drop as many rows as are corrupted: none of a clean set.
    dropped = rate if drop_rate is None else drop_rate
    ramp = recipe.ramp_of.get(corruption, recipe.ramp)
    if preset == "proper" and given.get("schedule", kind.schedule) == "ramp":
        ramp = slower_beyond_a_half(ramp, dropped, given.get("epochs", recipe.epochs))
    if preset == "authors":
        habits = {"scoring": "train", "passes": kind.paper_passes}
        if "always_dropout" in inspect.signature(MODELS[model]).parameters:
            suggested["always_dropout"] = True
    settings: dict[str, Any] = {
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.learning_rate,
        "ramp": ramp,
        "schedule": kind.schedule,
        "decay": "constant" if preset == "authors" else "linear",
        "corruption_seed": 0 if preset == "authors" else seed,
        "model": model,
    }
    return Run(
        data=data,
        method=method,
        corruption=corruption,
        rate=rate,
        drop_rate=dropped,
        preset=preset,
        seed=seed,
        method_options={**habits, **(method_options or {})},
        model_options={**suggested, **(model_options or {})},
        **(settings | given),
    )


def slower_beyond_a_half(ramp: int, drop_rate: float | str, epochs: Any) -> int:
    """The length of the ramp to this drop rate, in epochs. Invalid values pass: `check_run` reports them."""
    if not isinstance(drop_rate, int | float) or not isinstance(epochs, int) or drop_rate <= HALF:
        return ramp
    return max(ramp, min(SLOWLY * ramp, math.ceil(MOST_RISING * epochs)))


def check_run(run: Run) -> None:
    """Check all that can be checked before the data is read."""
    check_rate(argument("rate"), run.rate)
    most_dropped(run)
    for name, allowed in CHOICES.items():
        if getattr(run, name) not in allowed:
            raise InputError(f"{argument(name)} is {getattr(run, name)!r}, but must be one of: {', '.join(allowed)}.")
    for name, table in {"data": DATASETS, "method": METHODS, "model": MODELS, "corruption": CORRUPTIONS}.items():
        table[getattr(run, name)]  # raises if there is no such entry
    find_schedule(run.schedule)
    for name, least in {"epochs": 1, "batch_size": 1, "ramp": 0, "seed": 0, "corruption_seed": 0}.items():
        check_count(argument(name), getattr(run, name), least)
    check_positive(argument("learning_rate"), run.learning_rate)
    for name, kind in {"data_dir": str | None, "device": str}.items():
        if not isinstance(getattr(run, name), kind):
            raise InputError(f"{argument(name)} is {getattr(run, name)!r}, but must be text.")
    for name in ("data_options", "method_options", "model_options"):
        check_options(argument(name), getattr(run, name))
    if run.rate > 0 and run.corruption == "none":
        raise InputError(
            f"{argument('rate')} is {run.rate}, but {argument('corruption')} is 'none': name the corruption that it "
            "is a rate of."
        )
    check_batch(run, run.batch_size)


def most_dropped(run: Run) -> float:
    """The drop rate, checked; for "auto" the largest that may be chosen."""
    return largest_rate(run.drop_rate)


def check_options(name: str, options: Any) -> None:
    """Require names with plain values: options are saved with the run."""
    try:
        if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
            raise TypeError("a dictionary of names is needed")
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is {options!r}, but must hold plain values by name ({error}).") from None


def check_batch(run: Run, rows: int) -> None:
    """A method that drops rows needs batches of which it can drop some and keep some."""
    if not METHODS[run.method].drops_rows:
        return
    if rows < 2:
        raise InputError(
            f"{argument('batch_size')} is {run.batch_size}: batches of 1 row, but {run.method} compares the rows of a "
            f"batch. Give it at least 2, or take {argument('method')} standard."
        )
    if (1 - exact(most_dropped(run))) * rows < 1:
        raise InputError(
            f"{argument('drop_rate', run.drop_rate)} would keep no row of a batch of {rows}. "
            f"Use a larger {argument('batch_size')} or a smaller {argument('drop_rate')}."
        )
