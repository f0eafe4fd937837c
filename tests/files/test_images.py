"""Which files of a folder are its images."""

import numpy as np
import pytest

from gradsieve.errors import InputError
from gradsieve.files.images import class_images, read_images


def test_what_programs_hide_among_images_is_none(tmp_path):
    folder = tmp_path / ".cache" / "photos"  # that the folder itself is hidden does not matter
    images = ["cat/1.png", "cat/_2.JPG", "_other/3.png"]
    for name in [*images, ".ipynb_checkpoints/1.png", "cat/.thumbs/1.png", "cat/._1.png", "__MACOSX/cat/._1.png"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"pixels")
    paths, classes = class_images(folder)
    assert {path.as_posix() for path in paths} == {*images}
    assert set(classes) == {"cat", "_other"}


def test_files_of_class_folders_that_cannot_be_read_are_told(tmp_path):
    for name in ("about.csv", "cat/1.png", "cat/2.HEIC", "cat/.DS_Store", "dog/1.heic"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"pixels")
    notes = []
    assert class_images(tmp_path, notes.append)[1] == ["cat"]
    (told,) = notes
    assert told.endswith("are left out: 2, the first of them cat/2.HEIC")


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path):
    folder, elsewhere = tmp_path / "photos", tmp_path / "elsewhere"
    for place in (folder / "cat", elsewhere / "old"):
        place.mkdir(parents=True)
        (place / "1.png").write_bytes(b"pixels")
    (folder / "dog").symlink_to(elsewhere)
    (folder / "cat" / "all").symlink_to(folder)
    (elsewhere / "back").symlink_to(folder / "cat")
    paths, classes = class_images(folder)
    assert [path.as_posix() for path in paths] == ["cat/1.png", "dog/back/1.png", "dog/old/1.png"]
    assert classes == ["cat", "dog", "dog"]


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_pixels_of_more_than_8_bits_are_not_cut_off(tmp_path, kind):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "cat").mkdir()
    image.fromarray(np.arange(1024).reshape(32, 32).astype(kind)).save(tmp_path / "cat" / "1.tif")
    with pytest.raises(InputError, match=r"1\.tif cannot be read as an image \(its pixels have more than 8 bits"):
        read_images(tmp_path, class_images(tmp_path)[0], 32)
