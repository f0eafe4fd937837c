"""CIFAR-10 and CIFAR-100, from their binary or python distribution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source
from gradsieve.data.files import find
from gradsieve.data.pickles import read_pickle
from gradsieve.errors import InputError

PIXELS = 3 * 32 * 32  # a red, a green and a blue plane: already (C, H, W)


@dataclass(frozen=True)
class Cifar:
    """What differs between the two: their files, and the labels before the pixels of a record."""

    name: str
    classes: int
    binary: str  # folder of the binary version: files with the suffix .bin
    python: str  # folder of the python version: pickles without a suffix
    train: tuple[str, ...]
    test: str
    label_bytes: int  # per record; the last one is the class, in CIFAR-100 after the coarse label
    label_key: str  # of the labels in a pickle
    names_file: dict[str, str]  # the file with the names of classes, by suffix of the data's files
    names_key: str  # of the names in a pickle

    @property
    def layout(self) -> str:
        files = ", ".join((*self.train, self.test))
        return f"{self.binary}/ ({files}, each with .bin) or {self.python}/ (the same without .bin)"


def load_cifar(cifar: Cifar, folder: Path | None = None) -> DataSet:
    """uint8 images (N, 3, 32, 32) from ``folder``: the distribution's own or its parent."""
    first = cifar.train[0]
    places = f"{first}.bin", f"{cifar.binary}/{first}.bin", first, f"{cifar.python}/{first}"
    found = find(cifar.name, folder, cifar.layout, *places)
    paths = [
        find(cifar.name, found.parent, cifar.layout, f"{name}{found.suffix}") for name in (*cifar.train, cifar.test)
    ]
    *parts, test = [read_images(cifar, path) for path in paths]
    for path, rows in zip(paths, parts, strict=False):
        most = max(map(len, parts))
        if len(rows) < most:  # a file cut off between two records, which its size alone does not show
            raise InputError(f"{path} holds {len(rows)} images, but the others {most}. Get it again.")
    train = Rows(torch.cat([rows.inputs for rows in parts]), torch.cat([rows.targets for rows in parts]))
    return DataSet("classification", train, test, class_names(cifar, found.parent, found.suffix))


def read_images(cifar: Cifar, path: Path) -> Rows:
    """The images and classes of one file."""
    pixels, labels = (_read_binary if path.suffix else _read_python)(cifar, path)  # (N, 3072), (N,)
    if len(labels) == 0 or pixels.shape != (len(labels), PIXELS):
        raise InputError(f"{path} does not hold images of {PIXELS} bytes with one label each. Get it again.")
    if labels.min() < 0 or labels.max() >= cifar.classes:
        row = int(((labels < 0) | (labels >= cifar.classes)).argmax())
        raise InputError(
            f"{path}, image {row}, has the label {labels[row]}, but {cifar.name} has 0 to {cifar.classes - 1}."
        )
    return Rows(torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels.astype(np.int64)))


def _read_binary(cifar: Cifar, path: Path) -> tuple[np.ndarray, np.ndarray]:
    values = np.fromfile(path, np.uint8)
    record = cifar.label_bytes + PIXELS
    if len(values) % record:
        raise InputError(
            f"{path} has {len(values)} bytes, which are no whole number of {record}-byte records: "
            "it is cut short or of another data set. Get it again."
        )
    records = values.reshape(-1, record)
    return records[:, cifar.label_bytes :], records[:, cifar.label_bytes - 1]


def _read_python(cifar: Cifar, path: Path) -> tuple[np.ndarray, np.ndarray]:
    fields = read_pickle(path)
    labels = fields.get(cifar.label_key)
    if not isinstance(fields.get("data"), np.ndarray) or not isinstance(labels, list):
        raise InputError(f"{path} holds no data with {cifar.label_key}: it is not of {cifar.name}.")
    if not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
        raise InputError(f"{path} holds {cifar.label_key} that are not bytes. Get it again.")
    return fields["data"], np.array(labels, np.int64)


def class_names(cifar: Cifar, root: Path, suffix: str) -> tuple[str, ...]:
    """The names of the classes; their numbers if the file with the names is missing."""
    path = root / cifar.names_file[suffix]
    if not path.exists():
        return tuple(map(str, range(cifar.classes)))
    names = path.read_text("utf-8", "replace").split() if suffix else read_pickle(path).get(cifar.names_key, [])
    if len(names) != cifar.classes:
        raise InputError(f"{path} names {len(names)} classes, but {cifar.name} has {cifar.classes}.")
    return tuple(map(str, names))


_CIFAR10 = Cifar(
    name="cifar10",
    classes=10,
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    label_bytes=1,
    label_key="labels",
    names_file={".bin": "batches.meta.txt", "": "batches.meta"},
    names_key="label_names",
)
_CIFAR100 = Cifar(
    name="cifar100",
    classes=100,
    binary="cifar-100-binary",
    python="cifar-100-python",
    train=("train",),
    test="test",
    label_bytes=2,
    label_key="fine_labels",
    names_file={".bin": "fine_label_names.txt", "": "meta"},
    names_key="fine_label_names",
)
CIFARS = {each.name: each for each in (_CIFAR10, _CIFAR100)}
_RECIPE = Recipe(model="cnn9", epochs=49, batch_size=128, learning_rate=1e-3, ramp=10)  # as in the authors' code

CIFAR10 = Source(
    summary="CIFAR-10, 32x32 colour images, 10 classes; from its binary or python distribution",
    tasks=("classification",),
    load=partial(load_cifar, _CIFAR10),
    recipe=_RECIPE,
    layout=_CIFAR10.layout,
)
CIFAR100 = Source(
    summary="CIFAR-100, 32x32 colour images, 100 classes; from its binary or python distribution",
    tasks=("classification",),
    load=partial(load_cifar, _CIFAR100),
    recipe=replace(_RECIPE, ramp_of={"pairflip": 15}),
    layout=_CIFAR100.layout,
)
