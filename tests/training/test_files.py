"""Files that are whole or not there: in pieces, too."""

import hashlib
import os

import pytest
import torch
from safetensors.torch import save

from gradsieve.errors import InputError
from gradsieve.training.files import read_tensors, write_tensors, write_whole


@pytest.mark.parametrize(
    "tensors",
    [
        {"one": torch.arange(10)},
        {
            "b": torch.randn(3, 4),
            'a "ü"': torch.tensor(5),
            "c": torch.randn(7).bfloat16(),
            "none": torch.zeros(0, 3),
            "bytes": torch.ones(5, dtype=torch.uint8),
            "truth": torch.tensor([True, False]),
            "wide": torch.randn(3).double(),
            "turned": torch.randn(3, 4).T,
        },
    ],
)
def test_tensors_are_written_as_safetensors_would(tmp_path, tensors):
    sha256 = write_tensors(tmp_path / "t", tensors)
    whole = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    assert (tmp_path / "t").read_bytes() == whole
    assert sha256 == hashlib.sha256(whole).hexdigest()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read_tensors(tmp_path / "t", sha256).items())


def test_tensors_that_share_memory_are_written_apart(tmp_path):
    shared = torch.arange(6.0)
    sha256 = write_tensors(tmp_path / "t", {"whole": shared, "part": shared[2:4]})
    assert read_tensors(tmp_path / "t", sha256)["part"].tolist() == [2, 3]


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    """A power cut would otherwise leave the new name with nothing in it."""
    calls = []
    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(calls, name, getattr(os, name)))
    write_whole(tmp_path / "t", b"new")
    assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def noted(calls, name, action):
    return lambda *args: (calls.append(name), action(*args))[1]


def test_pieces_that_end_in_an_error_leave_what_was_there(tmp_path):
    def pieces():
        yield b"new"
        raise InputError("row 7 is bad")

    write_whole(tmp_path / "t", b"old")
    with pytest.raises(InputError, match="row 7"):
        write_whole(tmp_path / "t", pieces())
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert (tmp_path / "t").read_bytes() == b"old"
