"""The demo's arithmetic, its picture and its table; its runs are what `make demo` shows."""

import json

import pytest

from gradsieve.experiments import demo
from gradsieve.report.curves import draw_curves


def test_recovered_is_the_share_of_the_loss_that_came_back():
    assert demo.recovered(standard=0.7, robust=0.91, clean=0.98) == pytest.approx(0.75)
    assert demo.recovered(standard=-1, robust=0.5, clean=1) == 0.5


def test_a_short_demo_leaves_table_picture_and_runs_and_is_not_run_twice(tmp_path, monkeypatch, capsys):
    short = {"epochs": 2, "batch_size": 256}
    full = demo.make_run
    monkeypatch.setattr(demo, "make_run", lambda data, method, **given: full(data, method, **short, **given))
    records = demo.run_demo(tmp_path / "demo")
    assert [record["method"] for record in records[:4]] == ["standard", "prl-l", "co-prl-l", "clean targets"]
    assert json.loads((tmp_path / "demo" / "table.json").read_text()) == records
    assert (tmp_path / "demo" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "recovered" in capsys.readouterr().out
    seconds = [record["seconds"] for record in demo.run_demo(tmp_path / "demo")]
    assert seconds == [record["seconds"] for record in records]


def test_curves_below_the_picture_are_named_there(tmp_path):
    draw_curves({"a task": {"good": [0.1, 0.9], "lost": [-20.0, -30.0]}}, tmp_path / "deep" / "curves.png")
    assert (tmp_path / "deep" / "curves.png").stat().st_size > 5000
