"""CelebA's layout with a few painted images."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch

from gradsieve.data import DATASETS
from gradsieve.data.celeba import load_partitions
from gradsieve.data.landmarks import OUTPUT_NAMES
from gradsieve.data.validate import validate
from gradsieve.errors import InputError, MissingExtraError

Image = pytest.importorskip("PIL.Image")
PARTS = [0, 0, 0, 0, 0, 1, 1, 2, 2, 2]
SIZE = (20, 10)  # twice as wide as high


def write(folder, kind="png"):
    """Ten images, row i of brightness 20 i, with landmarks that are random but known."""
    points = np.random.default_rng(0).integers(0, 10, (10, 10))
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{row + 1:06d}.{kind}" for row in range(10)]
    for row, name in enumerate(names):
        Image.new("RGB", SIZE, (20 * row, 0, 255)).save(folder / "img_align_celeba" / name)
    lines = ["10", " ".join(OUTPUT_NAMES)]
    lines += [f"{name}  {'  '.join(map(str, row))}" for name, row in zip(names, points.tolist(), strict=True)]
    (folder / "list_landmarks_align_celeba.txt").write_text("\n".join(lines) + "\n")
    (folder / "list_eval_partition.txt").write_text(
        "".join(f"{name} {part}\n" for name, part in zip(names, PARTS, strict=True))
    )
    return points


@pytest.mark.parametrize("kind", ["png", "jpg"])
@pytest.mark.parametrize("place", ["", "celeba"])
def test_reads_train_and_test_partitions(tmp_path, place, kind):
    points = write(tmp_path / place, kind)
    data = DATASETS["celeba"](tmp_path)
    validate(data)
    assert data.train.inputs.shape == (5, 3, 64, 64)
    assert data.test.inputs.shape == (3, 3, 64, 64)
    assert data.train.inputs.dtype == torch.uint8
    assert abs(int(data.test.inputs[1, 0, 30, 30]) - 20 * 8) <= 3  # JPEG is not exact
    assert data.output_names[:2] == ("left_eye_x", "left_eye_y")
    train = points[:5].astype(float)
    wanted = (points[7:] - train.mean(0)) / train.std(0)  # a resize is affine, which standardising undoes
    assert np.allclose(data.test.targets.numpy(), wanted, atol=1e-4)


def test_landmarks_move_with_images_of_different_size(tmp_path):
    points = write(tmp_path)
    path = tmp_path / "img_align_celeba" / "000001.png"
    Image.new("RGB", (40, 10)).save(path)
    data = DATASETS["celeba"](tmp_path, size=10)
    pixels = (points[:5] + 0.5) * np.tile([0.5, 1], 5) - 0.5
    pixels[0] = (points[0] + 0.5) * np.tile([0.25, 1], 5) - 0.5
    assert np.allclose(data.train.targets.numpy(), (pixels - pixels.mean(0)) / pixels.std(0), atol=1e-4)


def test_the_validation_partition_is_there_for_those_who_ask(tmp_path):
    write(tmp_path)
    train, validation, test = load_partitions(tmp_path, size=8, train=4)
    assert [len(train), len(validation), len(test)] == [4, 2, 3]
    assert validation.inputs.shape == (2, 3, 8, 8)
    assert validation.inputs[:, 0, 0, 0].tolist() == [100, 120]
    assert train.targets.mean(0).abs().max() < 1e-5


def test_so_many_rows(tmp_path):
    write(tmp_path)
    data = DATASETS["celeba"](tmp_path, size=8, train=3, test=1)
    assert (len(data.train), len(data.test)) == (3, 1)
    for train in (-1, 0):
        with pytest.raises(InputError, match=f"train is {train}"):
            DATASETS["celeba"](tmp_path, train=train)
    with pytest.raises(InputError, match="size is '64'"):
        DATASETS["celeba"](tmp_path, size="64")


@pytest.mark.parametrize("name", ["list_landmarks_align_celeba.txt", "list_eval_partition.txt", "img_align_celeba"])
def test_missing_files_show_the_layout(tmp_path, name):
    write(tmp_path)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"no {name} in .* must hold img_align_celeba/"):
        DATASETS["celeba"](tmp_path)


def test_a_missing_or_damaged_image_is_named(tmp_path):
    write(tmp_path)
    path = tmp_path / "img_align_celeba" / "000003.png"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match=r"000003.png cannot be read .*\. Get it again, or take it out of list_eval"):
        DATASETS["celeba"](tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"000003.png cannot be read .*\. Get it again, or take it out of list_eval"):
        DATASETS["celeba"](tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("list_landmarks_align_celeba.txt", "10\n", "11\n", "promises '11' images and lists 10"),
        ("list_landmarks_align_celeba.txt", "000002.png", "000002.png 7", "line 4: expected .* 10 numbers"),
        ("list_landmarks_align_celeba.txt", "000002.png", "000020.png", "no landmarks of 000002.png"),
        ("list_eval_partition.txt", "000004.png 0", "000004.png zero", "line 4: expected .* 1 numbers"),
        ("list_eval_partition.txt", "000004.png 0", "000004.png nan", "line 4"),
        ("list_eval_partition.txt", "000004.png", "../../etc/passwd", "line 4: expected an image name"),
        ("list_eval_partition.txt", " 2", " 1", "no image in partition 2"),
    ],
)
def test_wrong_lists_are_named(tmp_path, name, old, new, message):
    write(tmp_path)
    path = tmp_path / name
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        DATASETS["celeba"](tmp_path)


def test_a_constant_landmark_is_named(tmp_path):
    write(tmp_path)
    with pytest.raises(InputError, match=r"The target left_eye_x is .* in all 1 training rows"):
        DATASETS["celeba"](tmp_path, train=1)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path)
    real_import = builtins.__import__

    def no_pillow(name, *rest):
        if name == "PIL":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_pillow)
    with pytest.raises(MissingExtraError, match=r"gradsieve\[data\]"):
        DATASETS["celeba"](tmp_path)
