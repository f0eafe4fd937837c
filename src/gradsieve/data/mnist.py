"""MNIST, and other data in the same four IDX files, such as Fashion-MNIST."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source
from gradsieve.data.files import find
from gradsieve.errors import InputError

LAYOUT = "train-images-idx3-ubyte, train-labels-idx1-ubyte and the same two of t10k, plain or with .gz"
PLACES = ("", "mnist/", "MNIST/raw/")  # where the files may be in the given folder; the last is torchvision's layout


def load_mnist(folder: Path | None = None) -> DataSet:
    """uint8 images (N, 1, 28, 28) of ten classes."""
    train, test = (_read_rows(folder, part) for part in ("train", "t10k"))
    return DataSet("classification", train, test, tuple("0123456789"))


def _read_rows(folder: Path | None, part: str) -> Rows:
    images_path, labels_path = (
        find("mnist", folder, LAYOUT, *(f"{place}{name}{end}" for place in PLACES for end in ("", ".gz")))
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    )
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1).long()  # (N, H, W), (N,)
    if len(images) != len(labels):
        raise InputError(f"{images_path} holds {len(images)} images, but {labels_path} {len(labels)} labels.")
    if labels.max() > 9:
        row = int((labels > 9).nonzero()[0])
        raise InputError(f"{labels_path}, row {row}, is {labels[row]}, but the classes are 0 to 9.")
    return Rows(images[:, None], labels)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of an IDX file in its shape.

    The format: two zeros, type 8, the number of dimensions, their sizes as big-endian integers, the data.
    """
    head = 4 + 4 * dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            start = file.read(head)
            if len(start) < head or start[:4] != bytes((0, 0, 8, dimensions)):
                raise InputError(f"{path} is not an IDX file of bytes in {dimensions} dimensions.")
            shape = tuple(np.frombuffer(start, ">u4", offset=4).tolist())
            data = file.read(prod(shape) + 1)  # one more shows that there is too much, however much it unpacks to
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}. Get it again.") from error
    if len(data) != prod(shape) or not data:
        found = "more" if len(data) > prod(shape) else len(data)
        raise InputError(f"{path} promises {prod(shape)} bytes of data and holds {found}. Get it again.")
    return torch.from_numpy(np.frombuffer(data, np.uint8).reshape(shape).copy())


MNIST = Source(
    summary="MNIST, 28x28 handwritten digits, 10 classes; from its IDX files",
    tasks=("classification",),
    load=load_mnist,
    recipe=Recipe(model="mlp", epochs=20, batch_size=128, learning_rate=1e-3, ramp=5),
    layout=LAYOUT,
)
