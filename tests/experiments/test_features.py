"""CelebA's features: trained once, kept with a sum of what they were made of, and read as a data set."""

import json

import pytest

from gradsieve.data import DATASETS
from gradsieve.data.validate import validate
from gradsieve.errors import CheckpointError, InputError, RunFolderError
from gradsieve.experiments.features import FeatureSettings, ensure_features, other_images

SMALL = FeatureSettings(size=16, width=0.1, batch_size=16, epochs=3, patience=2)


@pytest.fixture(scope="module")
def faces(tmp_path_factory, write_faces):
    return write_faces(tmp_path_factory.mktemp("faces"))


@pytest.fixture(scope="module")
def made(faces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "features"
    said = []
    ensure_features(str(faces), folder, "cpu", said.append, SMALL)
    return folder, said


def test_the_test_images_become_the_data_set(made):
    folder, said = made
    data = DATASETS["celeba-features"](folder)
    validate(data)
    assert (data.train.inputs.shape, data.test.inputs.shape) == ((32, 512), (8, 512))
    assert data.train.targets.mean(0).abs().max() < 1e-5
    assert (data.train.targets.std(0, correction=0) - 1).abs().max() < 1e-4
    assert said[0] == "features: training on 60 images, 20 to stop by"
    about = json.loads((folder / "features.json").read_text())
    assert 1 <= about["epoch"] <= SMALL.epochs
    assert about["settings"]["width"] == 0.1
    assert other_images(folder) == about["images"] == {"train": 60, "validation": 20, "test": 40}


def test_they_are_made_once_and_the_same_again(made, faces, tmp_path):
    folder, _ = made
    before = (folder / "features.json").stat().st_mtime_ns
    ensure_features(str(faces), folder, "cpu", pytest.fail, SMALL)
    ensure_features(None, folder, "cpu", pytest.fail, SMALL)
    assert (folder / "features.json").stat().st_mtime_ns == before
    ensure_features(str(faces), tmp_path / "again", "cpu", len, SMALL)
    about, again = (json.loads((each / "features.json").read_text()) for each in (folder, tmp_path / "again"))
    assert about == again


def test_other_images_or_settings_need_another_folder(made, tmp_path, write_faces):
    folder, _ = made
    with pytest.raises(RunFolderError, match="features of other images"):
        ensure_features(str(write_faces(tmp_path / "other", seed=1)), folder, "cpu", len, SMALL)
    with pytest.raises(RunFolderError, match="other settings"):
        ensure_features(None, folder, "cpu", len, FeatureSettings())


def test_damaged_features_are_not_used(made, tmp_path):
    folder, _ = made
    for name in ("features.json", "features.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    content = bytearray((tmp_path / "features.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "features.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"damaged .*SHA-256"):
        DATASETS["celeba-features"](tmp_path)
    (tmp_path / "features.json").write_text("[]")
    with pytest.raises(InputError, match="damaged"):
        DATASETS["celeba-features"](tmp_path)
    (tmp_path / "features.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"damaged .* Delete .* to have it made again\."):
        ensure_features(None, tmp_path, "cpu", len, SMALL)


def test_without_images_there_is_one_error(tmp_path):
    with pytest.raises(InputError, match="no folder was given"):
        ensure_features(None, tmp_path / "features", "cpu", len, SMALL)
    assert not (tmp_path / "features").exists()
