"""Which files of a folder are its images."""

from gradsieve.files.images import class_images


def test_what_programs_hide_among_images_is_none(tmp_path):
    folder = tmp_path / ".cache" / "photos"  # that the folder itself is hidden does not matter
    images = ["cat/1.png", "cat/_2.JPG", "_other/3.png"]
    for name in [*images, ".ipynb_checkpoints/1.png", "cat/.thumbs/1.png", "cat/._1.png", "__MACOSX/cat/._1.png"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"pixels")
    paths, classes = class_images(folder)
    assert {path.as_posix() for path in paths} == {*images}
    assert set(classes) == {"cat", "_other"}
