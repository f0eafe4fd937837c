"""The result of a run, from its last state or from its folder."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradsieve import ranks
from gradsieve.data import Rows
from gradsieve.errors import CheckpointError, InputError, RunFolderError
from gradsieve.methods import METHODS
from gradsieve.metrics import METRICS
from gradsieve.models.build import build
from gradsieve.notebook import PAGES
from gradsieve.registry import sources
from gradsieve.training.files import digest, finite
from gradsieve.training.folder import RunFolder, read_folder
from gradsieve.training.ledger import Ledger
from gradsieve.training.outline import is_outlined, outline
from gradsieve.training.run import Run
from gradsieve.training.setting import Setting
from gradsieve.training.shared_folder import SharedFolder
from gradsieve.training.sources import changed_code
from gradsieve.training.state import State, load_weights
from gradsieve.training.versions import versions

FILE_SUMS = ("figures_sha256", "weights_sha256", "ledger_sha256")  # of result.json; themselves not part of a checksum


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run. ``summary`` is the content of result.json."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]  # one record per epoch
    weights: dict[str, Tensor]
    ledger: Ledger

    @property
    def metric(self) -> str:
        """What was measured on the test rows: accuracy or r2."""
        return self.summary["metric"]

    @property
    def last(self) -> float:
        """The metric after the last epoch, the mean over the networks."""
        return number(self.summary["last"])

    @property
    def last10_mean(self) -> float:
        """The mean of the metric over the last ten epochs."""
        return number(self.summary["last10_mean"])

    @property
    def purity(self) -> float:
        """The share of clean rows among those that the last epoch trained on."""
        return number(self.summary["purity"])

    def networks(self) -> list[nn.Module]:
        """The trained networks, on the CPU and in eval mode; two if the method trains two."""
        run = Run.from_json(self.summary["run"])
        if not self.summary.keys() >= {"input_shape", "outputs"}:
            raise CheckpointError("This result was written before networks were described in it. Train the run again.")
        code = changed_code(self.summary["run"].get("sources"), sources(run.model))
        if code:
            raise CheckpointError(
                f"The weights are of a network of other code: {code}. Put it back as it was, or train the run again."
            )
        shape, outputs = self.summary["input_shape"], self.summary["outputs"]
        try:
            count = METHODS[run.method].networks
            networks = [build(run.model, shape, outputs, run.model_options).eval() for _ in range(count)]
            load_weights(networks, self.weights)
        except (InputError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The weights do not fit the network that the result describes: {run.model}, inputs {shape}, outputs "
                f"{outputs}. Its result.json is damaged, or the code of the network is other than it was."
            ) from error
        return networks

    def __repr__(self) -> str:
        """One line, without the tensors."""
        run = self.summary["run"]
        figures = f"{self.metric} {self.last:.4f}, mean of the last ten epochs {self.last10_mean:.4f}"
        return f"Result({run['data']}, {run['method']}, {len(self.history)} epochs: {figures})"

    def _repr_html_(self) -> str:
        return PAGES["result"](self)


def finish(
    setting: Setting, state: State, folder: RunFolder | SharedFolder | None, manner: Mapping[str, Any]
) -> Result:
    """The result of a finished run, also written to its folder. ``manner`` says how it ran, for the summary."""
    tests = [record["test"] for record in state.history]
    last10 = tests[-10:]
    summary: dict[str, Any] = {
        "metric": METRICS[setting.data.task][0],
        "last": tests[-1],
        "last10_mean": statistics.fmean(last10),
        "last10_std": torch.tensor(last10, dtype=torch.float64).std(correction=0).item(),  # pstdev breaks on NaN
        "purity": state.history[-1]["purity"],
        "corrupted": int(setting.is_corrupted.sum()),
        "rows": len(setting.data.train),
        "rows_outline": outline(setting.data.train),
        "input_shape": list(setting.data.train.inputs.shape[1:]),
        "outputs": setting.data.outputs,
        "seconds": state.seconds,
        **manner,
        "run": setting.run.to_json(),
        "versions": versions(setting.device),
    }
    weights = {name: tensor.detach().cpu() for name, tensor in state.weights().items()}
    if folder is not None:
        summary["figures_sha256"] = figures_sha256(summary, state.history)
        summary = folder.finish(summary, weights, state.ledger.tensors())
    return Result(summary, state.history, weights, state.ledger.cpu())


def load_result(folder: str | Path) -> Result:
    """The result of a finished run, from the folder that `train` wrote."""
    found = read_folder(Path(folder))
    if not found.finished:
        raise RunFolderError(f"{folder} holds a run that is not finished. Go on with train(run, folder, resume=True).")
    return read_result(found)


def read_result(folder: RunFolder | SharedFolder) -> Result:
    """The result of a finished run, from its folder."""
    summary, history = folder.result(), folder.metrics()
    ranks.agreed(lambda: require_whole(folder.path, summary, history))
    return Result(summary, history, folder.weights(), Ledger(**folder.ledger()))


def require_whole(folder: Path | None, summary: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
    """Refuse a result that was altered. One from an older version, without a checksum, must at least be readable."""
    found = figures_sha256(summary, history)
    if summary.get("figures_sha256", found) != found:
        raise CheckpointError(f"{folder} is damaged: the figures of its result.json or metrics.jsonl were altered.")
    figures = [summary[name] for name in ("last", "last10_mean", "purity")]
    if not all(figure is None or isinstance(figure, int | float) for figure in figures):
        raise CheckpointError(f"{folder} is damaged: a figure of its result.json is no number.")
    if not all(isinstance(record, dict) for record in history):
        raise CheckpointError(f"{folder} is damaged: a line of its metrics.jsonl is not the record of an epoch.")
    try:
        Run.from_json(summary["run"])
    except InputError as error:
        raise CheckpointError(f"{folder} is damaged: its result.json holds no run ({error})") from error


def require_trained_on(folder: RunFolder, rows: Rows) -> None:
    """Refuse training rows other than those of the result: its ledger would be read for the wrong rows."""
    summary = folder.result()
    is_as_long = len(rows) == summary.get("rows")
    has_outline = "rows_outline" in summary  # results of older versions have none
    if not is_as_long or (has_outline and not is_outlined(rows, summary["rows_outline"])):
        counts = "" if is_as_long else f" ({len(rows)} rows, it was trained on {summary.get('rows')})"
        raise RunFolderError(
            f"{folder.path} was trained on other rows{counts}: the data has changed since. Put it back as it was, or "
            "train the run again."
        )


def figures_sha256(summary: Mapping[str, Any], history: list[dict[str, Any]]) -> str:
    """The SHA-256 of the values of result.json, without its checksums, and of metrics.jsonl."""
    values = {name: summary[name] for name in summary if name not in FILE_SUMS}
    return digest(finite([values, history]))


def number(value: float | None) -> float:
    """A figure of a summary; NaN is null in JSON."""
    return math.nan if value is None else value
