"""IDX files, plain and compressed, whole and not."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from gradsieve.data import DATASETS
from gradsieve.data.validate import validate
from gradsieve.errors import InputError


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def files(rows: int = 12) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    return {
        f"{part}-{kind}-ubyte": idx(array)
        for part in ("train", "t10k")
        for kind, array in (
            ("images-idx3", random.integers(0, 256, (rows, 28, 28))),
            ("labels-idx1", np.arange(rows) % 10),
        )
    }


def write(folder, contents, compressed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
def test_reads_plain_and_compressed_files(tmp_path, compressed, place):
    write(tmp_path / place, files(), compressed)
    data = DATASETS["mnist"](tmp_path)
    validate(data)
    assert data.train.inputs.shape == (12, 1, 28, 28)
    assert data.train.inputs.dtype == torch.uint8
    assert bytes(data.train.inputs.flatten().tolist()) == files()["train-images-idx3-ubyte"][16:]
    assert data.test.targets.tolist() == [*range(10), 0, 1]


def test_missing_files_show_the_layout(tmp_path):
    contents = files()
    del contents["t10k-labels-idx1-ubyte"]
    write(tmp_path, contents)
    with pytest.raises(InputError, match=r"no t10k-labels-idx1-ubyte in .*must hold train-images-idx3-ubyte"):
        DATASETS["mnist"](tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("keep", [0, 3, 10, 16, 100, -1])
def test_a_truncated_file_is_named(tmp_path, compressed, keep):
    write(tmp_path, files(), compressed)
    (path,) = tmp_path.glob("train-images*")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="train-images-idx3-ubyte"):
        DATASETS["mnist"](tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-labels-idx1-ubyte", idx(np.arange(11) % 10), "12 images, but .* 11 labels"),
        ("train-labels-idx1-ubyte", idx(np.arange(12)), "row 10, is 10"),
        ("train-labels-idx1-ubyte", idx(np.arange(12) % 10) + b"x", "promises 12 bytes of data and holds more"),
        ("train-labels-idx1-ubyte", idx(np.zeros((3, 4))), "not an IDX file"),
        ("train-labels-idx1-ubyte", b"a text file, not labels", "not an IDX file"),
        ("t10k-images-idx3-ubyte", idx(np.zeros((0, 28, 28))), "promises 0 bytes"),
    ],
)
def test_wrong_files_are_named(tmp_path, name, content, message):
    write(tmp_path, {**files(), name: content})
    with pytest.raises(InputError, match=message):
        DATASETS["mnist"](tmp_path)


def test_a_damaged_archive_is_named(tmp_path):
    write(tmp_path, files(), compressed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz"):
        DATASETS["mnist"](tmp_path)
