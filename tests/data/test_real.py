"""Real data, where it lies beside the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradsieve.data import DATASETS
from gradsieve.data.validate import validate

EXPAND = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "expand.py"
pytestmark = pytest.mark.skipif(not EXPAND.exists(), reason="the packed real data is not here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("real")
    command = [sys.executable, str(EXPAND), "--to", str(to), "mnist", "power_plant"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return to


def test_mnist(folder):
    data = DATASETS["mnist"](folder)
    validate(data)
    assert (len(data.train), len(data.test)) == (60000, 10000)
    assert data.train.targets[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.test.targets.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert abs(data.train.inputs.float().mean().item() / 255 - 0.1307) < 1e-4  # as widely published


def test_power_plant(folder):
    data = DATASETS["table"](folder)
    validate(data)
    assert data.output_names == ("PE",)
    assert (len(data.train), len(data.test)) == (7655, 1913)
    slope = (data.train.inputs[:, 0] * data.train.targets[:, 0]).mean()  # temperature against power
    assert abs(slope + 0.948) < 0.01  # the correlation that its authors report
