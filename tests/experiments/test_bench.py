"""The cost of a step is measured in turns, beside Standard, for every method that fits."""

import json
import math
import time

import pytest
import torch
from rich.console import Console

from gradsieve import kernels
from gradsieve.errors import InputError
from gradsieve.experiments import bench as bench_module
from gradsieve.experiments.bench import WORKLOADS, Workload, bench, find_workload, make_step, summary, take_turns
from gradsieve.experiments.floors import make_floor
from gradsieve.experiments.peers import PEERS
from gradsieve.methods import METHODS, prl_g
from gradsieve.report.bench_table import bench_table
from gradsieve.training.setting import choose_device

CPU = torch.device("cpu")
SMALL = Workload("mlp", (6,), 3, 16, model_options=(("hidden", [8]),))


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch):
    monkeypatch.setattr(bench_module, "TURN", 1e-4)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_method_that_fits_the_task_is_measured_beside_standard(task):
    measured = bench(Workload("mlp", (6,), 3, 16, task, (("hidden", [8]),)), turns=3, device="cpu")
    assert list(measured["methods"]) == [name for name in METHODS if task in METHODS[name].tasks]
    assert measured["device"] == "cpu"
    for row in measured["methods"].values():
        assert row["ms"] > 0
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert measured["methods"]["standard"]["ratio"] == 1


def test_standard_is_always_there_and_once():
    assert list(bench(SMALL, ["prl-l", "standard"], turns=3, device="cpu")["methods"]) == ["standard", "prl-l"]


def test_without_kernels_means_every_step(monkeypatch):
    wanted, real = [], prl_g.row_pass
    monkeypatch.setattr(prl_g, "row_pass", lambda *each: wanted.append(kernels._WANTED.get()) or real(*each))
    for name in ("prl-g:kernels=off", "prl-g"):
        step = make_step(SMALL, name, 0.45, CPU)
        for _ in range(3):
            step()
    assert wanted == [False] * 3 + [True] * 3


def test_the_ratio_is_of_steps_in_the_same_turn():
    """A machine that slows down over the run slows both: the ratio stays, while the ratio of medians need not."""
    assert summary([2.0, 4.0, 40.0, 80.0], [1.0, 2.0, 20.0, 40.0])["ratio"] == 2


def test_a_turn_is_as_many_steps_as_fill_it_and_the_rows_take_turns(monkeypatch):
    monkeypatch.setattr(bench_module, "TURN", 0.01)
    calls = []

    def quick():
        calls.append("quick")
        time.sleep(0.002)

    def slow():
        calls.append("slow")
        time.sleep(0.02)

    seconds = take_turns({"quick": quick, "slow": slow}, 3, CPU)
    assert all(0.002 <= each < 0.02 for each in seconds["quick"])  # of one step, not of a turn
    turns = [name for number, name in enumerate(calls) if name != (calls[number - 1] if number else "")]
    assert turns == ["quick", "slow"] * 4  # the first to see how many steps fill a turn
    assert calls.count("quick") > calls.count("slow")


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_workloads_are_real(name):
    workload = WORKLOADS[name]
    small = Workload(
        workload.model, workload.input_shape, workload.outputs, 4, workload.task, (*workload.model_options,)
    )
    make_step(small, "prl-l", 0.45, choose_device("cpu"))()


# ------------------------------------------------------------------------------- floors and parts


def test_the_arithmetic_of_a_plain_step_is_counted_and_timed_alone():
    layers = (6 * 8 + 8 * 3) * 2 * 16  # a forward
    backward = 2 * layers - 6 * 8 * 2 * 16  # nobody asks for the gradient at the input
    floor = make_floor(SMALL, CPU)
    assert floor.flops == layers + backward
    measured = bench(SMALL, ["prl-l"], turns=3, device="cpu")
    assert measured["floor"]["gflop"] == floor.flops / 1e9
    assert math.isclose(measured["floor"]["tflops"], floor.flops / measured["floor"]["ms"] / 1e9)
    assert math.isclose(measured["floor"]["standard_tflops"], floor.flops / measured["methods"]["standard"]["ms"] / 1e9)


def test_the_floor_runs_the_layers_and_nothing_else():
    floor = make_floor(Workload("cnn9", (3, 32, 32), 10, 2, model_options=(("width", 0.05),)), CPU)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        floor.step()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::convolution"] == counts["aten::convolution_backward"] == 9
    assert counts["aten::linear"] == 1
    assert not any("norm" in name or "relu" in name for name in counts)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_parts_of_a_step_are_there(task):
    workload = Workload("mlp", (6,), 3, 16, task, (("hidden", [8]),))
    measured = bench(workload, ["prl-l"], turns=3, device="cpu")
    assert list(measured["parts"]) == ["scores", "selection", "ledger and tally", "robust loss", "plain loss"]
    assert all(row["ms"] > 0 for row in measured["parts"].values())
    bare = bench(workload, ["prl-l"], turns=3, device="cpu", floors=False)
    assert "parts" in bare
    assert not {"floor", "left_out"} & bare.keys()


# ------------------------------------------------------------------------------------------ peers


def test_peers_stand_beside_the_methods_or_the_reason_why_not():
    measured = bench(SMALL, ["prl-l"], turns=3, device="cpu", peers=True)
    assert set(measured["methods"]) | set(measured["left_out"]) == {"standard", "prl-l", *PEERS}
    assert not set(measured["methods"]) & set(measured["left_out"])
    mixed = Workload("mlp", (6,), 3, 16, model_options=(("hidden", [8]), ("norm", "batch")))
    measured = bench(mixed, ["prl-l"], turns=3, device="cpu", peers=True, floors=False)
    assert "authors: prl-l" in measured["methods"]
    assert "BatchNorm mixes rows" in measured["left_out"]["torch.func: prl-g"]


def test_in_another_engine_a_plain_step_stands_beside_the_peers(monkeypatch):
    monkeypatch.setitem(bench_module.ENGINES, "other", bench_module.plain_step)
    measured = bench(SMALL, ["prl-l"], turns=3, device="cpu", engine="other", peers=True, floors=False)
    assert measured["engine"] == "other"
    assert list(measured["methods"])[:3] == ["standard", "prl-l", "plain: standard"]
    assert "plain: standard" not in bench(SMALL, ["prl-l"], turns=3, device="cpu", engine="other")["methods"]


# ----------------------------------------------------------------------------- mistakes and tables


def test_a_workload_takes_another_batch_size():
    assert find_workload("mlp", 64).batch_size == 64
    assert find_workload("mlp").batch_size == 512


def test_mistakes_are_named():
    with pytest.raises(InputError, match="Did you mean 'cnn9-quarter'"):
        find_workload("cnn9-quater")
    with pytest.raises(InputError, match="batch_size is 0"):
        find_workload("mlp", 0)
    with pytest.raises(InputError, match="turns is 1"):
        bench(SMALL, turns=1)
    with pytest.raises(InputError, match=r"drop_rate is 1\.5"):
        bench(SMALL, drop_rate=1.5)
    with pytest.raises(InputError, match="made for regression"):
        bench(SMALL, ["huber"])
    with pytest.raises(InputError, match="Did you mean 'plain'"):
        bench(SMALL, ["prl-l"], engine="plane")


def test_what_was_measured_reads_as_a_table_and_as_json():
    measured = bench(SMALL, ["prl-l"], turns=3, device="cpu", peers=True)
    assert json.loads(json.dumps(measured)) == measured
    measured["left_out"] = {"opacus: prl-g": "opacus is not installed"}
    for row in measured["methods"].values():
        row["peak_mib"] = 12.0
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(bench_table("small", measured))
    text = console.export_text()
    for words in ("small, batch 16", "x standard", "peak MiB", "prl-l", "authors: prl-l", "TFLOP/s", "selection alone"):
        assert words in text
    assert "Not measured: opacus: prl-g (opacus is not installed)." in text
