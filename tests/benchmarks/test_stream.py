"""The benchmark of streams makes its set, fits it both ways, and leaves nothing behind."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "stream.py"


def test_both_ways_are_measured(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    spec = importlib.util.spec_from_file_location("stream", FILE)
    stream = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stream)

    def measure(data, scratch, stream_it):  # in this process: torch is loaded already
        stream.fit_once(data, scratch / f"model-{data.name}-{stream_it}", stream_it)
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    monkeypatch.setattr(stream, "SHARD", 2000)
    monkeypatch.setattr(stream, "measure", lambda data, scratch, stream: measure(data, scratch, stream))
    monkeypatch.setattr(
        sys, "argv", ["stream.py", "--rows", "5000", "--part", "2000", "--scratch", str(tmp_path / "scratch")]
    )
    stream.main()
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["rows"] for run in runs.values()] == [2000, 2000, 5000]
    assert runs["in memory"]["ratio"] == 1
    assert all(run["peak_bytes"] > 0 and run["rows_a_second"] > 0 for run in runs.values())
    assert not (tmp_path / "scratch").exists()
