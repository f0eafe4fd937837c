"""CelebA's features: a network trained on the clean train partition, applied to the test images, once.

Training stops early by the R2 on the validation partition. The paper says "three-layer CNN" and 512 features; the other
settings are ours, and saved beside the features.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve import seeds
from gradsieve.arguments import elsewhere
from gradsieve.data.celeba import IMAGES, LAYOUT, LIST, PARTITION, Partitions, load_partitions
from gradsieve.data.dataset import Rows
from gradsieve.data.features import ABOUT, TENSORS
from gradsieve.data.files import find
from gradsieve.errors import GradsieveError, InputError, RunFolderError
from gradsieve.metrics import r2
from gradsieve.models.landmark_cnn import LandmarkCNN, landmark_cnn
from gradsieve.training.feed import as_float
from gradsieve.training.files import read_json, write_json, write_tensors
from gradsieve.training.setting import choose_device

Say = Callable[[str], None]
CELEBA_IMAGES = {"train": 162_770, "validation": 19_867, "test": 19_962}


@dataclass(frozen=True)
class FeatureSettings:
    """How the network is trained."""

    size: int = 64  # side of the images, in pixels
    width: float = 1.0  # of the network
    batch_size: int = 128
    learning_rate: float = 1e-3
    epochs: int = 60
    patience: int = 8  # epochs without a better validation R2
    seed: int = 0


def ensure_features(
    data_dir: str | None, folder: Path, device: str, say: Say, settings: FeatureSettings | None = None
) -> None:
    """Make the features of the images in ``data_dir``, unless ``folder`` has them already."""
    settings = settings or FeatureSettings()
    if (folder / ABOUT).exists():
        check_features(folder, data_dir, settings)
        return
    parts = load_partitions(Path(data_dir) if data_dir else None, settings.size)
    say(f"features: training on {len(parts.train)} images, {len(parts.validation)} to stop by")
    network, about = train_network(parts, settings, choose_device(device), say)
    tensors = {"inputs": features_of(network, parts.test.inputs), "targets": parts.test.targets}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be made ({error.strerror}). {elsewhere()}") from error
    sha256 = write_tensors(folder / TENSORS, tensors)
    # Written last: without it, the features are not complete.
    write_json(
        folder / ABOUT,
        {
            "sha256": sha256,
            "data_sha256": data_sha256(data_dir),
            "images": {name: len(rows) for name, rows in parts._asdict().items()},
            "settings": asdict(settings),
            **about,
        },
    )


def check_features(folder: Path, data_dir: str | None, settings: FeatureSettings) -> None:
    """Refuse to reuse features that were made from other images or with other settings."""
    about = read_about(folder)
    if not isinstance(about, dict) or about.get("settings") != asdict(settings):
        raise RunFolderError(f"{folder} holds features made with other settings. {elsewhere()}")
    if data_dir is not None and about.get("data_sha256") != data_sha256(data_dir):
        raise RunFolderError(f"{folder} holds features of other images than those in {data_dir}. {elsewhere()}")


def read_about(folder: Path) -> Any:
    """The JSON file about the features."""
    return read_json(folder / ABOUT, f"Delete {folder} to have it made again.")


def other_images(folder: Path) -> dict[str, int]:
    """How many images of each partition the features were made from; empty if they are all of CelebA's."""
    about = read_about(folder) if (folder / ABOUT).exists() else {}
    return {} if about.get("images", CELEBA_IMAGES) == CELEBA_IMAGES else about["images"]


def data_sha256(data_dir: str | None) -> str:
    """SHA-256 of CelebA's lists and of every image that they name."""
    root = find("celeba", data_dir, LAYOUT, LIST, f"celeba/{LIST}").parent
    digest = hashlib.sha256()
    try:
        for name in (LIST, PARTITION):
            digest.update((root / name).read_bytes())
        for line in (root / PARTITION).read_text("utf-8", "replace").splitlines():
            digest.update((root / IMAGES / line.split()[0]).read_bytes())
    except (OSError, IndexError) as error:
        raise InputError(f"{root} cannot be read: {error}. The folder must hold {LAYOUT}.") from error
    return digest.hexdigest()


def train_network(
    parts: Partitions, settings: FeatureSettings, device: torch.device, say: Say
) -> tuple[LandmarkCNN, dict[str, Any]]:
    """The network at the epoch with the best R2 on the validation partition, with that epoch and its R2."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.derive(settings.seed, "features", "weights"))
        shape = parts.train.inputs.shape[1:]
        network = landmark_cnn(shape, parts.train.targets.shape[1], width=settings.width).to(device)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    train = Rows(parts.train.inputs.to(device), parts.train.targets.to(device))
    best, best_epoch, best_weights = -torch.inf, 0, copy.deepcopy(network.state_dict())
    for epoch in range(1, settings.epochs + 1):
        order = torch.randperm(len(train), generator=seeds.generator(settings.seed, "features", "order", epoch))
        for rows in order.to(device).split(settings.batch_size):
            optimizer.zero_grad()
            F.mse_loss(network(as_float(train.inputs[rows])), train.targets[rows]).backward()
            optimizer.step()
        predictions = network.head(features_of(network, parts.validation.inputs).to(device)).detach().cpu()
        score = r2(predictions, parts.validation.targets).item()
        if score > best:
            best, best_epoch, best_weights = score, epoch, copy.deepcopy(network.state_dict())
            say(f"features: epoch {epoch}, validation R2 {score:.4f}")
        elif epoch - best_epoch >= settings.patience:
            break
    if best_epoch == 0:
        raise GradsieveError(
            f"The network that makes the features never predicted the {len(parts.validation)} validation images: its "
            "R2 there is not a number. Check the landmarks with gradsieve data check."
        )
    network.load_state_dict(best_weights)
    return network, {"epoch": best_epoch, "validation_r2": best}


@torch.no_grad()
def features_of(network: LandmarkCNN, inputs: Tensor) -> Tensor:
    """(N, features) on the CPU."""
    device = next(network.parameters()).device
    return torch.cat([network.features(as_float(chunk.to(device))).cpu() for chunk in inputs.split(1000)])
