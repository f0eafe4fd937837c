"""The benchmark of drop rates: one line a cell, none twice, and a table of all of them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "rate.py"


@pytest.fixture
def rate(monkeypatch):
    spec = importlib.util.spec_from_file_location("rate", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rate", module)
    spec.loader.exec_module(module)
    return module


def test_cells_are_measured_once_and_shown(rate, monkeypatch, tmp_path, capsys):
    out = tmp_path / "rate.jsonl"
    few = ["--rows", "250", "--epochs", "2", "--rates", "0", "0.3", "--corruptions", "pairflip", "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", ["rate.py", "--sets", "digits", *few, "--out", str(out)])
    rate.main()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["corruption"], line["rate"]) for line in lines] == [("none", 0.0), ("pairflip", 0.3)]
    assert lines[1]["moved"] == pytest.approx(0.3)
    assert all(len(line["test_of_rate"]) == 6 for line in lines)
    shown = capsys.readouterr().out
    assert "| vote |" in shown
    assert "within 1 of the true rate's run" in shown
    monkeypatch.setattr(rate, "measure", None)
    rate.main()  # from the file
    assert len(out.read_text().splitlines()) == 2
    assert capsys.readouterr().out.strip() in shown


def test_real_targets_have_criteria_of_their_own(rate):
    data = rate.DATASETS["landmarks"](None, train=250, test=20, size=16)
    line = rate.measure(rate.Cell("landmarks", "signflip", 0.3, 0, 250, 1), data)
    assert set(line["picks"]) == {*rate.CRITERIA["regression"], *rate.FIXED}
    assert "R2" in "\n".join(rate.markdown([line]))
