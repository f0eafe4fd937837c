"""Features of CelebA's test images with their landmarks, the data of the paper's Table 1.

A network that was trained on the clean train partition turns every test image into 512 numbers, once
(``gradsieve reproduce table1`` does it). Of these rows 80 % are for training and 20 % for testing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source
from gradsieve.data.files import find
from gradsieve.data.landmarks import OUTPUT_NAMES
from gradsieve.data.scaling import standardise_targets
from gradsieve.errors import InputError
from gradsieve.seeds import generator

TENSORS = "features.safetensors"  # inputs (N, 512), targets (N, 10)
ABOUT = "features.json"  # the SHA-256 of the tensors, and how they were made
LAYOUT = f"{TENSORS} and {ABOUT}, which gradsieve reproduce table1 makes"
TEST_SHARE = 5  # one in five rows is for testing


def load_features(folder: Path | None = None) -> DataSet:
    """The same split in all runs. Targets are standardised on the clean training rows, before any corruption."""
    path = find("celeba-features", folder, LAYOUT, TENSORS)
    about = find("celeba-features", folder, LAYOUT, ABOUT)
    content = path.read_bytes()
    try:
        if hashlib.sha256(content).hexdigest() != json.loads(about.read_text())["sha256"]:
            raise ValueError(f"its SHA-256 is not the one in {ABOUT}")
        tensors = load(content)
        inputs, targets = tensors["inputs"], tensors["targets"]
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(f"{path} is damaged ({error}). Delete {folder} to have it made again.") from error
    order = torch.randperm(len(inputs), generator=generator(0, "features", "split"))
    test, train = order[: len(order) // TEST_SHARE], order[len(order) // TEST_SHARE :]
    train_targets, test_targets = standardise_targets(OUTPUT_NAMES, targets[train], targets[test])
    return DataSet("regression", Rows(inputs[train], train_targets), Rows(inputs[test], test_targets), OUTPUT_NAMES)


CELEBA_FEATURES = Source(
    summary="512 features of CelebA's test images, five landmarks; made by gradsieve reproduce table1",
    tasks=("regression",),
    load=load_features,
    recipe=Recipe(model="mlp", epochs=100, batch_size=512, learning_rate=3e-4, ramp=10),
    layout=LAYOUT,
)
