"""CelebA's five facial landmarks, from its aligned images and lists."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source
from gradsieve.data.files import find
from gradsieve.data.landmarks import OUTPUT_NAMES
from gradsieve.data.scaling import mean_and_std, standardise_targets
from gradsieve.data.validate import check_count
from gradsieve.errors import InputError, MissingExtraError

LIST = "list_landmarks_align_celeba.txt"
PARTITION = "list_eval_partition.txt"
IMAGES = "img_align_celeba"
LAYOUT = f"{IMAGES}/, {LIST} and {PARTITION}, directly or in celeba/"


class Partitions(NamedTuple):
    """CelebA's three partitions; training may stop early on validation."""

    train: Rows
    validation: Rows
    test: Rows


def load_celeba(
    folder: Path | None = None, size: int = 64, train: int | None = None, test: int | None = None
) -> DataSet:
    """Train on partition 0 and test on partition 2, or on their first ``train`` and ``test`` rows."""
    parts, pixels = _read_partitions(folder, size, (train, 0, test))
    return DataSet("regression", parts.train, parts.test, OUTPUT_NAMES, pixels)


def load_partitions(
    folder: Path | None = None,
    size: int = 64,
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
) -> Partitions:
    """uint8 images (N, 3, size, size) and landmarks (N, 10) standardised on train, at most the given rows of each."""
    return _read_partitions(folder, size, (train, validation, test))[0]


def _read_partitions(
    folder: Path | None, size: int, limits: Sequence[int | None]
) -> tuple[Partitions, tuple[Tensor, Tensor]]:
    """The partitions, and the mean and standard deviation of the landmarks of train in pixels."""
    check_count("size", size, least=1)
    root = find("celeba", folder, LAYOUT, LIST, f"celeba/{LIST}").parent
    landmarks = _read_landmarks(root / LIST)
    partition = _read_list(find("celeba", root, LAYOUT, PARTITION), columns=1)
    images = find("celeba", root, LAYOUT, IMAGES)
    inputs, targets = [], []
    for number, limit in enumerate(limits):
        if limit is not None:
            check_count(Partitions._fields[number], limit, least=1 if number == 0 else 0)
        names = [name for name, (part,) in partition.items() if part == number][:limit]
        if not names and limit != 0:
            raise InputError(f"{root / PARTITION} puts no image in partition {number}.")
        unknown = next((name for name in names if name not in landmarks), None)
        if unknown is not None:
            raise InputError(f"{root / LIST} has no landmarks of {unknown}, which {PARTITION} names.")
        pixels, scale = _read_images([images / name for name in names], size)
        points = torch.tensor([landmarks[name] for name in names]).view(-1, 5, 2)  # (N, point, (x, y))
        # The centres of pixels have whole coordinates, so a picture starts at -0.5.
        targets.append(((points + 0.5) * scale[:, None] - 0.5).flatten(1))
        inputs.append(pixels)
    rows = map(Rows, inputs, standardise_targets(OUTPUT_NAMES, *targets))
    return Partitions(*rows), mean_and_std(targets[0])


def _read_landmarks(path: Path) -> dict[str, list[float]]:
    """Ten numbers per image, by name. The file's first line has the number of images, its second the column names."""
    landmarks = _read_list(path, columns=10, skip=2)
    with open(path, encoding="utf-8", errors="replace") as file:
        promised = file.readline().strip()
    if promised != str(len(landmarks)):
        raise InputError(f"{path} promises {promised[:20]!r} images and lists {len(landmarks)}. Get it again.")
    return landmarks


def _read_list(path: Path, columns: int, skip: int = 0) -> dict[str, list[float]]:
    """Image names with ``columns`` numbers each."""
    rows = {}
    lines = path.read_text("utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines[skip:], start=skip + 1):
        name, *cells = line.split() or [""]
        try:
            values = [float(cell) for cell in cells]
        except ValueError:
            values = []
        # A name that contains a path would read files outside of the folder.
        if len(values) != columns or not np.isfinite(values).all() or Path(name).name != name:
            raise InputError(
                f"{path}, line {number}: expected an image name and {columns} numbers. Get the file again."
            )
        rows[name] = values
    return rows


def _read_images(paths: Sequence[Path], size: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, size, size), and the factors by which each was scaled in x and y (N, 2)."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "data", "Reading images") from error
    pixels = np.empty((len(paths), 3, size, size), np.uint8)
    scale = np.empty((len(paths), 2), np.float32)

    def read(row: int) -> None:
        try:
            with Image.open(paths[row], formats=("JPEG", "PNG")) as image:
                scale[row] = size / image.width, size / image.height
                small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(
                f"{paths[row]} cannot be read ({error}). Get it again, or take it out of {PARTITION}."
            ) from error
        pixels[row] = np.asarray(small).transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:  # Pillow releases the GIL while decoding
        list(pool.map(read, range(len(paths))))
    return torch.from_numpy(pixels), torch.from_numpy(scale)


CELEBA = Source(
    summary="CelebA, 64x64 colour faces, five landmarks; from its images and lists",
    tasks=("regression",),
    load=load_celeba,
    recipe=Recipe(model="landmark-cnn", epochs=30, batch_size=512, learning_rate=1e-3, ramp=10),
    layout=LAYOUT,
)
