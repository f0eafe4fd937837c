"""The benchmark measures what it says, goes on where it stopped, and prints a table."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "audit.py"


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("benchmark_audit", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_audit", module)
    spec.loader.exec_module(module)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["audit.py", "--out", str(tmp_path), *map(str, arguments)])
        module.main()
        return capsys.readouterr().out

    return module, run


def test_rows_are_found_and_the_next_call_goes_on(bench, monkeypatch, tmp_path):
    module, run = bench
    monkeypatch.setitem(module.SETTINGS, "digits", (("symmetric", 0.2),))
    small = ("--only", "digits", "--rows", 400, "--epochs", 10, "--times", 1)
    assert "| digits | symmetric 0.2 | 0.9" in run(*small, "--who", "gradsieve")
    (cell,) = json.loads((tmp_path / "comparison.json").read_text())["cells"].values()
    assert cell["auroc"] > 0.9
    monkeypatch.setattr(module, "figures", None)  # nothing is measured twice
    run(*small, "--who", "gradsieve")
    with pytest.raises(SystemExit, match="other settings"):
        run("--only", "digits", "--rows", 300)
    assert "| digits symmetric 0.2 | 0." in run(*small, "--what", "statistics")


def test_cleanlab_runs_where_it_is_installed(bench, monkeypatch, tmp_path):
    pytest.importorskip("cleanlab")
    module, run = bench
    monkeypatch.setitem(module.SETTINGS, "digits", (("symmetric", 0.2),))
    run("--only", "digits", "--rows", 400, "--epochs", 10, "--times", 1, "--who", "cleanlab")
    (cell,) = json.loads((tmp_path / "comparison.json").read_text())["cells"].values()
    assert cell["auroc"] > 0.8


def test_kinds_and_growth_are_measured(bench, monkeypatch):
    module, run = bench
    monkeypatch.setattr(module, "KINDS", {"uninoise": "random"})
    assert "landmarks uninoise 0.2" in run("--what", "kinds", "--rows", 200, "--epochs", 2)
    for task in ("classification", "regression"):
        assert module.cost_of_audit(2000, task)["seconds"] > 0
    assert "| digits | 0." in run("--what", "clean", "--rows", 300, "--epochs", 2, "--only", "digits")
