"""CIFAR's two distributions, written here image by image, and pickles that mean harm."""

from __future__ import annotations

import os
import pickle
import struct
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch

from gradsieve.data import DATASETS
from gradsieve.data.check import check_folder
from gradsieve.data.pickles import read_pickle
from gradsieve.data.published import PUBLISHED
from gradsieve.data.validate import validate
from gradsieve.errors import InputError

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
NAMES10 = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def images(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 3072), dtype=np.uint8)


def write_binary10(folder, rows=4):
    folder.mkdir(parents=True)
    for seed, name in enumerate(BATCHES):
        labels = np.arange(rows, dtype=np.uint8)[:, None] + seed
        np.concatenate([labels, images(rows, seed)], 1).tofile(folder / f"{name}.bin")
    (folder / "batches.meta.txt").write_text("\n".join(NAMES10) + "\n")
    return folder


def write_binary100(folder, rows=4):
    folder.mkdir(parents=True)
    for seed, name in enumerate(["train", "test"]):
        labels = np.stack([np.full(rows, 7), 90 + np.arange(rows)], 1).astype(np.uint8)  # coarse, fine
        np.concatenate([labels, images(rows, seed)], 1).tofile(folder / f"{name}.bin")
    (folder / "fine_label_names.txt").write_text("\n".join(f"kind{i}" for i in range(100)))
    return folder


def python2_batch(pixels: np.ndarray, labels: list[int], label_key: bytes = b"labels") -> bytes:
    """The bytes that Python 2's cPickle wrote for a batch, opcode by opcode: text is the old byte string."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
    kind += b"J\xff\xff\xff\xffK\x00tb"
    shape = b"M" + struct.pack("<H", pixels.shape[0]) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86"
    raw = b"T" + struct.pack("<i", pixels.size) + pixels.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + kind + b"\x89" + raw + b"tb"
    fields = text(b"batch_label") + text(b"training batch 1 of 5") + text(label_key) + b"](" + numbers + b"e"
    return b"\x80\x02}(" + fields + text(b"data") + array + b"u."


def write_python10(folder, rows=4, protocol=None):
    folder.mkdir(parents=True)
    for seed, name in enumerate(BATCHES):
        labels = [seed + row for row in range(rows)]
        if protocol is None:
            content = python2_batch(images(rows, seed), labels)
        else:
            content = pickle.dumps({b"data": images(rows, seed), b"labels": labels}, protocol)
        (folder / name).write_bytes(content)
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [n.encode() for n in NAMES10]}, 3))
    return folder


def check10(data, rows=4):
    validate(data)
    assert data.train.inputs.shape == (5 * rows, 3, 32, 32)
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.targets.tolist() == [seed + row for seed in range(5) for row in range(rows)]
    assert data.test.targets.tolist() == [5 + row for row in range(rows)]
    assert data.test.inputs.numpy().reshape(rows, -1).tolist() == images(rows, 5).tolist()
    assert data.output_names == tuple(NAMES10)


@pytest.mark.parametrize("place", ["", "cifar-10-batches-bin"])
def test_binary_from_its_folder_or_the_parent(tmp_path, place):
    folder = write_binary10(tmp_path / "data" / "cifar-10-batches-bin")
    check10(DATASETS["cifar10"](folder if place else folder.parent))


@pytest.mark.parametrize("protocol", [None, 3, 4])
def test_python_distribution(tmp_path, protocol):
    folder = write_python10(tmp_path / "cifar-10-batches-py", protocol=protocol)
    check10(DATASETS["cifar10"](folder))
    check10(DATASETS["cifar10"](tmp_path))


def test_binary_is_preferred(tmp_path):
    write_binary10(tmp_path / "cifar-10-batches-bin")
    write_python10(tmp_path / "cifar-10-batches-py", rows=2)
    assert len(DATASETS["cifar10"](tmp_path).test) == 4


def test_cifar100_takes_the_fine_labels(tmp_path):
    data = DATASETS["cifar100"](write_binary100(tmp_path / "cifar-100-binary").parent)
    validate(data)
    assert data.train.targets.tolist() == [90, 91, 92, 93]
    assert data.train.inputs.flatten(1).tolist() == images(4, 0).tolist()
    assert data.output_names[90] == "kind90"


def test_cifar100_from_python2_pickles_without_names(tmp_path):
    for seed, name in enumerate(["train", "test"]):
        (tmp_path / name).write_bytes(python2_batch(images(2, seed), [5, 99], b"fine_labels"))
    data = DATASETS["cifar100"](tmp_path)
    assert data.test.targets.tolist() == [5, 99]
    assert data.output_names[99] == "99"


def test_missing_files_show_the_layout(tmp_path):
    with pytest.raises(InputError, match=r"no folder was given.*cifar-10-batches-bin"):
        DATASETS["cifar10"]()
    with pytest.raises(InputError, match=r"no data_batch_1.bin in .*The folder must hold cifar-10-batches-bin"):
        DATASETS["cifar10"](tmp_path)
    with pytest.raises(InputError, match="no folder"):
        DATASETS["cifar10"](tmp_path / "elsewhere")
    (write_binary10(tmp_path / "cifar-10-batches-bin") / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"no data_batch_3.bin"):
        DATASETS["cifar10"](tmp_path)


@pytest.mark.parametrize("size", [0, 1, 3072, 3073 * 4 - 1, 3073 * 3])
def test_a_truncated_binary_file_is_named(tmp_path, size):
    folder = write_binary10(tmp_path / "bin")
    os.truncate(folder / "data_batch_2.bin", size)
    with pytest.raises(InputError, match=r"data_batch_2.bin (has|holds|does not hold)"):
        DATASETS["cifar10"](folder)


def test_labels_of_another_set_are_named(tmp_path):
    folder = write_binary10(tmp_path / "bin")
    content = bytearray((folder / "test_batch.bin").read_bytes())
    content[3073] = 77
    (folder / "test_batch.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"test_batch.bin, image 1, has the label 77"):
        DATASETS["cifar10"](folder)
    (folder / "test_batch.bin").write_bytes((folder / "data_batch_1.bin").read_bytes())
    (folder / "batches.meta.txt").write_text("a b c")
    with pytest.raises(InputError, match="names 3 classes"):
        DATASETS["cifar10"](folder)


@pytest.mark.parametrize("size", [0, 1, 20, 200, 5000])
def test_a_truncated_pickle_is_named(tmp_path, size):
    folder = write_python10(tmp_path / "py")
    os.truncate(folder / "data_batch_4", size)
    with pytest.raises(InputError, match="data_batch_4 is damaged"):
        DATASETS["cifar10"](folder)


class Shell:
    """Unpickled in the ordinary way, this leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Evaluated(Shell):
    def __reduce__(self):
        return eval, (f"open({str(self.path)!r}, 'w')",)


@pytest.mark.parametrize("hostile", [Shell, Evaluated])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path, hostile, protocol):
    trace, path = tmp_path / "trace", tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": hostile(trace)}, protocol))
    with pytest.raises(InputError, match=r"asks for \w+\.(system|eval)"):
        read_pickle(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'touch trace'\ntR.",  # the shortest attack
        b"cnumpy\nload\n(S'x'\ntR.",  # NumPy holds more than arrays
        b"cnumpy\nndarray.__class__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",  # a dotted name
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",  # no dictionary
        pickle.dumps({b"data": np.array([print], dtype=object)}, 3),
        pickle.dumps({b"data": np.zeros((2, 3072), np.float64)}, 3),
        pickle.dumps({b"data": np.zeros(1, [("a", "O")])}, 3),
        pickle.dumps([1, 2], 3),
        pickle.dumps({b"\xff": 1}, 3),
        b"\x80\x02}(U\x04datacnumpy\nndarray\n)R(K\x01K\x02K\x02K\x02tbu.",  # a state that is none
        b"",
    ],
)
def test_pickles_that_no_cifar_file_needs_are_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match="file is damaged or not a CIFAR file"):
        read_pickle(tmp_path / "file")


@pytest.mark.parametrize(
    "fields",
    [
        {b"data": b"no array", b"labels": [1]},
        {b"data": np.zeros((2, 3072), np.uint8)},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [1, 2]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2.5]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10**30]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 12]},
        {b"data": np.zeros((0, 3072), np.uint8), b"labels": []},
    ],
)
def test_pickles_without_images_and_labels_are_refused(tmp_path, fields):
    folder = write_python10(tmp_path / "py")
    (folder / "data_batch_1").write_bytes(pickle.dumps(fields, 3))
    with pytest.raises(InputError, match="data_batch_1"):
        DATASETS["cifar10"](folder)


# What gradsieve data check says.


def checked(name, folder):
    """What is wrong with a data set, as if its files were the published ones."""
    sums = {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.bin")}
    published = {name: replace(PUBLISHED[name], files=sums)}
    found = next(each for each in check_folder(folder, published) if each.name == name)
    return found.state, " ".join(found.problems)


@pytest.mark.parametrize(
    ("name", "write", "place", "names"),
    [
        ("cifar10", write_binary10, "cifar-10-batches-bin", "batches.meta.txt"),
        ("cifar100", write_binary100, "cifar-100-binary", "fine_label_names.txt"),
        ("cifar10", write_python10, "cifar-10-batches-py", "batches.meta"),
    ],
)
def test_a_check_tells_of_missing_and_of_wrong_names(tmp_path, name, write, place, names):
    folder = write(tmp_path / place)
    assert checked(name, tmp_path) == ("complete", "")
    content = (folder / names).read_bytes()
    (folder / names).unlink()
    assert checked(name, tmp_path) == (
        "incomplete",
        f"{folder / names} is missing: classes would be shown as numbers",
    )
    (folder / names).write_bytes(content[: len(content) // 2])
    state, problems = checked(name, tmp_path)
    assert state == "incomplete"
    assert names in problems
