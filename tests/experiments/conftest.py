"""What the tests of experiments share: real layouts of data sets with little in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gradsieve.data.landmarks import OUTPUT_NAMES, draw_faces

PARTS = [0] * 60 + [1] * 20 + [2] * 40  # train, validation, test


@pytest.fixture(scope="session")
def write_faces() -> Callable[..., Path]:
    """Drawn faces in CelebA's layout."""
    image_module = pytest.importorskip("PIL.Image")

    def write(folder: Path, seed: int = 0) -> Path:
        images, points = draw_faces(len(PARTS), 16, torch.Generator().manual_seed(seed))
        (folder / "img_align_celeba").mkdir(parents=True)
        names = [f"{row:06d}.png" for row in range(len(PARTS))]
        for name, image in zip(names, images, strict=True):
            picture = image_module.fromarray(np.asarray(image[0])).convert("RGB")
            picture.save(folder / "img_align_celeba" / name)
        rows = [[name, *map(str, row.flatten().tolist())] for name, row in zip(names, points, strict=True)]
        lines = [str(len(PARTS)), " ".join(OUTPUT_NAMES), *map(" ".join, rows)]
        (folder / "list_landmarks_align_celeba.txt").write_text("\n".join(lines))
        partition = "".join(f"{name} {part}\n" for name, part in zip(names, PARTS, strict=True))
        (folder / "list_eval_partition.txt").write_text(partition)
        return folder

    return write


@pytest.fixture(scope="session")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred training images and forty for testing, in the layout of CIFAR-10's binary distribution."""
    root = tmp_path_factory.mktemp("cifar")
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = 40 if number == 5 else 20
        labels = np.arange(rows, dtype=np.uint8)[:, None] % 10
        pixels = draw.integers(0, 256, (rows, 3072), dtype=np.uint8)
        np.concatenate([labels, pixels], 1).tofile(folder / f"{name}.bin")
    return root
