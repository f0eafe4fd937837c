"""The cost of a step is measured in turns, beside Standard, for every method that fits."""

import pytest

from gradsieve.errors import InputError
from gradsieve.experiments.bench import WORKLOADS, Workload, bench, find_workload, make_step, summary
from gradsieve.methods import METHODS
from gradsieve.training.setting import choose_device

SMALL = Workload("mlp", (6,), 3, 16, model_options=(("hidden", [8]),))


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


def test_the_ratio_is_of_steps_in_the_same_turn():
    """A machine that slows down over the run slows both: the ratio stays, while the ratio of medians need not."""
    assert summary([2.0, 4.0, 40.0, 80.0], [1.0, 2.0, 20.0, 40.0])["ratio"] == 2


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_workloads_are_real(name):
    workload = WORKLOADS[name]
    small = Workload(
        workload.model, workload.input_shape, workload.outputs, 4, workload.task, (*workload.model_options,)
    )
    make_step(small, "prl-l", 0.45, choose_device("cpu"))()


def test_mistakes_are_named():
    with pytest.raises(InputError, match="Did you mean 'cnn9-quarter'"):
        find_workload("cnn9-quater")
    with pytest.raises(InputError, match="turns is 1"):
        bench(SMALL, turns=1)
    with pytest.raises(InputError, match=r"drop_rate is 1\.5"):
        bench(SMALL, drop_rate=1.5)
    with pytest.raises(InputError, match="made for regression"):
        bench(SMALL, ["huber"])
