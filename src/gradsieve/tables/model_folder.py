"""The folder of a fitted model: it holds no code, and changes in it are noticed.

model.safetensors  the networks, and the decorrelation of their inputs
model.json         columns, encodings, scales, network, versions, and the SHA-256 of the weights and of itself
rows.csv           row, score, kept, given, predicted: the suspicious rows first
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradsieve.arguments import elsewhere
from gradsieve.errors import CheckpointError, GradsieveError, RunFolderError
from gradsieve.estimators.decorrelating import Decorrelation
from gradsieve.estimators.plan import Plan
from gradsieve.models.build import build
from gradsieve.tables.encoding import Encoding, from_json, to_json
from gradsieve.tables.targets import Targets
from gradsieve.training.files import (
    digest,
    filled,
    finite,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
    write_whole,
)
from gradsieve.training.state import load_weights, under, weights_of
from gradsieve.training.versions import versions

FORMAT = 2
FORMATS = (1, FORMAT)  # formats that can be read; the first had no decorrelation


@dataclass(frozen=True)
class Design:
    """How to build a network: a row of MODELS and its options."""

    name: str
    options: dict[str, Any]
    input_shape: list[int]
    outputs: int

    def build(self, number: int = 0) -> nn.Module:
        """A network; its ``number`` among several makes no difference."""
        return build(self.name, self.input_shape, self.outputs, self.options)


@dataclass(frozen=True)
class Model:
    """Everything that turns a file into predictions."""

    targets: Targets
    encoding: Encoding  # of a table; without columns for images
    side: int  # of images, in pixels; 0 for tables
    design: Design
    networks: list[nn.Module]


def check_new(folder: Path, beside: str = "") -> None:
    """Refuse a folder that is not new or empty, except for an entry named ``beside``."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(path.name != beside for path in folder.iterdir()))
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be looked into ({error.strerror}). {elsewhere()}") from error
    if taken:
        raise RunFolderError(f"{folder} is there already, and nothing is written over. {elsewhere()}")
    check_can_be_made(folder)


def check_can_be_made(folder: Path) -> None:
    """Make the folder and remove it again, so that an error comes before the fit and not after it.

    Folders above it stay, since another fit may be about to use them.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_new:
            folder.rmdir()
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be made ({error.strerror}). {elsewhere()}") from error


def about(summary: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """How a model was made: the fit's summary, its plan, software versions and the time."""
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"fit": summary, "plan": asdict(plan), "versions": versions(torch.device("cpu")), "made": made}


def returned(summary: dict[str, Any], plan: Plan, out: Path) -> dict[str, Any]:
    """What a fit returns: its summary, and what tells it from others."""
    return {**summary, "method": plan.method, "drop_rate": plan.used_rate, "seed": plan.seed, "out": str(out)}


def save_model(folder: Path, model: Model, history: dict[str, Any], rows: str, is_ours: bool = False) -> None:
    """Write the folder; model.json comes last and marks it complete. ``is_ours``: this fit has made it already."""
    if not is_ours:
        check_new(folder)
    tensors = weights_of(model.networks)
    mixed = model.encoding.decorrelation
    if mixed is not None:
        tensors |= {f"decorrelation.{name}": torch.from_numpy(array) for name, array in asdict(mixed).items()}
    with filled(folder, "rows.csv", "model.safetensors", "model.json") as (listed, weights, described):
        write_whole(listed, rows.encode())
        content = {
            "format": FORMAT,
            "targets": asdict(model.targets),
            "columns": to_json(model.encoding.columns),
            "image_side": model.side,
            "input_clip": model.encoding.clip,
            "network": asdict(model.design),
            "networks": len(model.networks),
            "weights_sha256": write_tensors(weights, tensors),
            **finite(history),
        }
        write_json(described, {**content, "sha256": digest(content)})


def load_model(folder: Path) -> Model:
    """The model of a folder, or an error if it is not what was written."""
    path, content = folder / "model.json", read_content(folder)
    try:
        design = Design(**content["network"])
        tensors = read_tensors(folder / "model.safetensors", content["weights_sha256"])
        networks = [design.build() for _ in range(content["networks"])]
        load_weights(networks, tensors)
        mixed = {name: tensor.numpy() for name, tensor in under(tensors, "decorrelation.").items()}
        return Model(
            targets=Targets(**content["targets"]),
            encoding=Encoding(
                from_json(content["columns"]), content["input_clip"], Decorrelation(**mixed) if mixed else None
            ),
            side=content["image_side"],
            design=design,
            networks=[network.eval() for network in networks],
        )
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, GradsieveError) as error:
        raise CheckpointError(f"{path} does not describe the model that lies beside it ({error}).") from error


def read_content(folder: Path) -> dict[str, Any]:
    """The content of model.json, if it has not changed."""
    path = folder / "model.json"
    if not path.is_file():
        if (folder / "fit").is_dir():
            raise RunFolderError(f"{folder} holds a fit that has not ended. Resume that fit first.")
        raise RunFolderError(f"{folder} is not a model folder: it has no model.json. Make one with gradsieve fit.")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") not in FORMATS or "sha256" not in content:
        raise CheckpointError(f"{path} is damaged or not a model of gradsieve fit. Fit it again into another folder.")
    if content.pop("sha256") != digest(content):
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one that it records. Fit it again.")
    return content
