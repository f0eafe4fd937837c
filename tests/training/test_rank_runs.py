"""A whole run over two and four ranks gives what one process gives: weights, ledger, counts, and one folder.

Each of the ranks goes through all runs and saves what it found.
"""

import shutil
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradsieve.choosing import electorate
from gradsieve.methods import METHODS
from gradsieve.training import auto_rate
from gradsieve.training.loop import train
from gradsieve.training.run import make_run

WORLDS = (1, 2, 4)
DIGITS = {
    "corruption": "symmetric",
    "rate": 0.3,
    "epochs": 2,
    "batch_size": 250,  # four ranks take 62, 63, 62 and 63 of them
    "ramp": 1,
    "device": "cpu",
    "model_options": {"hidden": [16]},
}
DOUBLE = {"model": "test_rank_runs:double", "model_options": {}}
NORMED = {"model": "test_rank_runs:normed", "model_options": {}}
FACES = {
    "corruption": "signflip",
    "rate": 0.25,
    "epochs": 2,
    "ramp": 1,
    "batch_size": 24,
    "device": "cpu",
    "data_options": {"train": 96, "test": 30, "size": 16},
    "model": "mlp",
    "model_options": {"hidden": [16]},
}


def normed(input_shape, outputs):
    """A network with BatchNorm. Without a bias before it: that has no gradient but rounding, which Adam makes large."""
    first = nn.Linear(64, 16, bias=False)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, outputs))


def double(input_shape, outputs):
    """The same in double precision, where rounding shows no more."""
    return Widened(normed(input_shape, outputs).double())


class Widened(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, inputs):
        return self.layers(inputs.double())


RUNS = {  # data, method, settings
    **{name: ("digits", name, DIGITS) for name in METHODS if "classification" in METHODS[name].tasks},
    "fp64": ("digits", "prl-l", DIGITS | DOUBLE),
    "fp64, two networks": ("digits", "co-prl-l", DIGITS | DOUBLE),
    "fp64, whole set": ("digits", "spl", DIGITS | DOUBLE | {"method_options": {"level": "data"}}),
    "whole set": ("digits", "spl", DIGITS | {"method_options": {"level": "data"}}),
    "groups": ("digits", "min-sgd", DIGITS | {"method_options": {"group": 8}}),
    "balanced": ("digits", "prl-l", DIGITS | {"method_options": {"balanced": True}}),
    "unknown rate": ("digits", "prl-l", DIGITS | {"drop_rate": "auto"}),
    "sync": ("digits", "prl-l", DIGITS | NORMED),
    "local": ("digits", "prl-l", DIGITS | NORMED | {"batchnorm": "local"}),
    "huber": ("landmarks", "huber", FACES),
    "prl-g, numbers": ("landmarks", "prl-g", FACES),
    "a rank without rows": ("landmarks", "prl-l", FACES | {"batch_size": 3, "epochs": 1}),
}
EXACT = {"fp64", "fp64, two networks", "fp64, whole set"}
FOLDERS = {"prl-l", "whole set", "unknown rate"}  # these write


def outcome(result):
    """What a run leaves, as plain values and tensors."""
    names = ("test", "loss", "purity", "kept_share_of_class")
    return {
        "weights": result.weights,
        "ledger": result.ledger.tensors(),
        "history": [{name: record[name] for name in names if name in record} for record in result.history],
        "ranks": result.summary.get("ranks"),
        "pick": result.summary.get("pick"),
    }


def prepare():
    """What the first run would import in each rank."""
    import sklearn.datasets  # noqa: F401
    from torch import _dynamo  # noqa: F401


def main(rank, folder):
    torch.set_num_threads(1)
    electorate.MOST_PARTS = 2  # networks of a candidate: as good as five to see that ranks agree
    for world in WORLDS:
        if rank >= world:
            continue
        if world > 1:
            meeting, patience = f"file://{folder}/meeting of {world}", timedelta(seconds=200)
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=patience)
        found = {}
        for name, (data, method, settings) in RUNS.items():
            run = make_run(data, method, **settings)
            out = Path(folder, f"{name} of {world}") if name in FOLDERS else None
            found[name] = outcome(train(run, out))
            if out is not None:  # finished: every rank reads it
                assert outcome(train(run, out, resume=True))["history"] == found[name]["history"]
            if name == "unknown rate":
                found["killed after its pick"] = outcome(
                    go_on(run, out, Path(folder, f"begun of {world}"), rank, world)
                )
        torch.save(found, Path(folder, f"{rank} of {world}.pt"))
        if world > 1:
            dist.destroy_process_group()


def go_on(run, done, begun, rank, world):
    """The run from the pick of one that is done, as if it had been killed before its first step."""
    if rank == 0:
        begun.mkdir()
        for name in ("config.json", "pick.json"):
            shutil.copy(done / name, begun / name)
    if world > 1:
        dist.barrier()
    with mock.patch.object(auto_rate, "race", side_effect=AssertionError("there is a pick already")):
        return train(run, begun, resume=True)


@pytest.fixture(scope="module")
def folder(run_ranks):
    """Where the ranks saved what they found."""
    return run_ranks(__file__, max(WORLDS))


def load(folder, rank, world):
    return torch.load(folder / f"{rank} of {world}.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(folder):
    return load(folder, 0, 1)


@pytest.fixture(scope="module", params=WORLDS[1:], ids="{} ranks".format)
def together(request, folder):
    return [load(folder, rank, request.param) for rank in range(request.param)]


AS_ONE = [name for name in RUNS if name != "local"]


@pytest.mark.parametrize("name", AS_ONE)
def test_a_run_over_ranks_ends_with_the_weights_of_one_process(name, alone, together):
    expected, tolerance = alone[name], 1e-10 if name in EXACT else 1e-5
    for rank in together:
        found = rank[name]
        assert found["weights"].keys() == expected["weights"].keys()
        for key, weight in expected["weights"].items():
            torch.testing.assert_close(found["weights"][key], weight, rtol=tolerance, atol=tolerance)
            assert found["weights"][key].equal(together[0][name]["weights"][key])  # ranks stay alike bit for bit


@pytest.mark.parametrize("name", AS_ONE)
def test_the_merged_ledger_and_counts_are_those_of_one_process(name, alone, together):
    expected = alone[name]
    for rank in together:
        found = rank[name]
        for column in ("judged", "dropped", "scored"):
            assert found["ledger"][column].equal(expected["ledger"][column]), column
        torch.testing.assert_close(found["ledger"]["score_sum"], expected["ledger"]["score_sum"], rtol=1e-4, atol=1e-4)
        for record, wanted in zip(found["history"], expected["history"], strict=True):
            assert record["purity"] == wanted["purity"]
            assert record.get("kept_share_of_class") == wanted.get("kept_share_of_class")
            assert record["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
            assert record["test"] == pytest.approx(wanted["test"], abs=1e-5)


def test_ranks_pick_the_drop_rate_of_one_process(alone, together):
    expected = alone["unknown rate"]["pick"]
    for rank in together:
        found = rank["unknown rate"]["pick"]
        assert (found["rate"], found["winner"]) == (expected["rate"], expected["winner"])
        assert found["margins"] == pytest.approx(expected["margins"], abs=1e-4)
        assert found == together[0]["unknown rate"]["pick"]
        begun = rank["killed after its pick"]
        assert begun["pick"] == found
        assert all(begun["weights"][key].equal(each) for key, each in rank["unknown rate"]["weights"].items())


def test_local_batchnorm_leaves_all_ranks_alike_and_is_said(together):
    norms = [rank["local"]["ranks"]["batchnorm"] for rank in together]
    assert norms == ["local"] * len(together)
    for rank in together:
        assert all(rank["local"]["weights"][key].equal(each) for key, each in together[0]["local"]["weights"].items())
    assert together[0]["sync"]["ranks"]["batchnorm"] == "sync"
    assert together[0]["prl-l"]["ranks"]["batchnorm"] is None


def test_the_result_says_who_took_what(together):
    shares = {2: [125, 125], 4: [62, 63, 62, 63]}[len(together)]
    assert together[0]["prl-l"]["ranks"]["rows_of_a_batch"] == shares
    assert together[0]["prl-l"]["ranks"]["world_size"] == len(together)
    if len(together) == 4:
        assert together[0]["a rank without rows"]["ranks"]["rows_of_a_batch"] == [0, 1, 1, 1]
