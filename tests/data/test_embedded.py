"""The data that needs no files: drawn faces and scikit-learn's digits; and the table of all sources."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn import functional as F

from gradsieve.data import DATASETS
from gradsieve.data.landmarks import draw_faces
from gradsieve.data.validate import validate
from gradsieve.errors import InputError, MissingExtraError


@pytest.mark.parametrize("name", list(DATASETS))
def test_every_source_says_what_it_is_and_what_it_reads(name):
    source = DATASETS[name]
    assert 10 < len(DATASETS.summary(name)) < 100
    assert source.recipe.ramp < source.recipe.epochs
    if source.layout:
        with pytest.raises(InputError, match="no folder was given"):
            source()
    else:
        validate(source())


def test_faces_have_the_promised_shape_and_scale():
    data = DATASETS["landmarks"](train=600, test=300)
    validate(data)
    assert data.train.inputs.shape == (600, 1, 32, 32)
    assert data.train.inputs.dtype == torch.uint8
    assert data.test.targets.shape == (300, 10)
    assert data.output_names[4] == "nose_x"
    assert data.train.targets.mean(0).abs().max() < 1e-5
    assert (data.train.targets.std(0, correction=0) - 1).abs().max() < 1e-5
    assert (data.test.targets.std(0) - 1).abs().max() < 0.3  # the same world
    assert not data.train.inputs[:300].equal(data.test.inputs)


def test_the_seed_decides_and_more_rows_begin_with_the_same():
    first, again, other = (DATASETS["landmarks"](train=300, test=2, seed=seed) for seed in (1, 1, 2))
    assert first.train.inputs.equal(again.train.inputs)
    assert first.train.targets.equal(again.train.targets)
    assert not first.train.inputs.equal(other.train.inputs)
    longer = DATASETS["landmarks"](train=600, test=2, seed=1)
    assert longer.train.inputs[:256].equal(first.train.inputs[:256])


@pytest.mark.parametrize("size", [16, 32, 48])
def test_points_lie_in_the_image_in_the_order_of_a_face(size):
    images, points = draw_faces(500, size, torch.Generator().manual_seed(0))
    assert images.shape == (500, 1, size, size)
    assert points.min() > 0
    assert points.max() < size - 1
    left_eye, right_eye, nose, left_mouth, right_mouth = points.unbind(1)
    assert (left_eye[:, 0] < right_eye[:, 0]).all()
    assert (left_mouth[:, 0] < right_mouth[:, 0]).all()
    assert ((left_eye + right_eye)[:, 1] < 2 * nose[:, 1]).all()
    assert (2 * nose[:, 1] < (left_mouth + right_mouth)[:, 1]).all()


def test_eyes_are_darker_than_what_is_around_them():
    """The points are where the picture says they are, not a pixel beside."""
    images, points = draw_faces(800, 32, torch.Generator().manual_seed(0))
    pixels = images[:, 0].float()

    def mean_at(shift: tuple[float, float]) -> float:
        at = points[:, :2] + torch.tensor(shift)  # both eyes
        grid = (2 * at + 1) / 32 - 1
        return F.grid_sample(pixels[:, None], grid[:, None], align_corners=False).mean().item()

    centre = mean_at((0, 0))
    for shift in [(2, 0), (-2, 0), (0, 2), (1, 0), (-1, 0), (0, 1), (0, -1)]:
        assert centre < mean_at(shift)


@pytest.mark.parametrize("options", [{"train": 1}, {"test": 0}, {"size": 8}, {"seed": -1}, {"train": 2.5}])
def test_options_of_faces_are_checked(options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name} is"):
        DATASETS["landmarks"](**options)


def test_a_network_learns_where_the_points_are():
    """A real task: far better than the mean (R2 0) and than a linear map of the pixels within seconds."""
    data = DATASETS["landmarks"](train=1000, test=300)
    inputs, test_inputs = data.train.inputs / 255, data.test.inputs / 255
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(1, 16, 3, 2, 1), torch.nn.Conv2d(16, 32, 3, 2, 1), torch.nn.Conv2d(32, 64, 3, 2, 1)]
    head = [torch.nn.Flatten(), torch.nn.Linear(1024, 128), torch.nn.LeakyReLU(), torch.nn.Linear(128, 10)]
    network = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.LeakyReLU())), *head)
    optimiser = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(10):
        for batch in torch.randperm(1000).split(64):
            optimiser.zero_grad()
            F.mse_loss(network(inputs[batch]), data.train.targets[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        error = (network(test_inputs) - data.test.targets).square().sum(0)
    r2 = 1 - error / (data.test.targets - data.test.targets.mean(0)).square().sum(0)
    assert r2.mean() > 0.5


def test_digits_are_split_evenly_over_the_classes():
    pytest.importorskip("sklearn")
    data = DATASETS["digits"]()
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.train.inputs.shape == (1437, 64)
    assert data.train.inputs.aminmax() == (0, 1)
    for rows in (data.train, data.test):
        share = rows.targets.bincount(minlength=10) / len(rows)
        assert (share - 0.1).abs().max() < 0.005
    assert data.train.inputs.equal(DATASETS["digits"]().train.inputs)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"gradsieve\[sklearn\]"):
        DATASETS["digits"]()
