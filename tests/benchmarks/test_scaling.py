"""The benchmark of growth measures every axis, and writes figures and a picture."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from gradsieve.experiments import bench as bench_module

FILE = Path(__file__).parents[2] / "benchmarks" / "scaling.py"


@pytest.fixture
def scaling(monkeypatch):
    spec = importlib.util.spec_from_file_location("scaling", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scaling", module)  # a run finds its data set there
    spec.loader.exec_module(module)
    monkeypatch.setattr(bench_module, "TURN", 1e-4)
    return module


def test_every_axis_is_measured_and_drawn(scaling, monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    small = {
        "batch size": (8, 16),
        "rows of the data set": (512, 1024),
        "classes": (2, 20),
        "parameters": (4, 8),
    }
    assert small.keys() == scaling.SIZES.keys()
    monkeypatch.setattr(scaling, "SIZES", {axis: (sizes, ()) for axis, sizes in small.items()})
    scaling.main(["--out", str(tmp_path), "--turns", "3", "--device", "cpu"])
    measured = json.loads((tmp_path / "scaling.json").read_text())
    assert (tmp_path / "scaling.png").stat().st_size > 1000
    printed = capsys.readouterr().out
    for axis, values in measured["axes"].items():
        assert f"{axis}: grows by the power standard" in printed
        assert all(len(times) == 2 and min(times) > 0 for times in values["times"].values())
        assert list(values["times"]) == ["standard", "prl-l", "prl-g"]
    assert measured["axes"]["parameters"]["at"] == [512 * n + n + n * n + n + 10 * n + 10 for n in (4, 8)]


def test_the_power_of_growth(scaling):
    places = [10, 100, 1000]
    times = {"linear": [1, 2, 20], "constant": [3, 3, 3], "squared": [1, 1, 100]}
    assert scaling.growth(places, times) == pytest.approx({"linear": 1, "constant": 0, "squared": 2})
