"""A batch over two and four processes gives what one process gives: the same rows, the same gradient.

The processes are this file, run as a script: each works through all cases on its shard and saves what it found.
"""

import copy
import subprocess
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from gradsieve import ranks
from gradsieve.errors import InputError
from gradsieve.methods import METHODS
from gradsieve.selection import keep_smallest

WORLDS = (2, 4)
BATCHES = 50
ROWS = 60
CORRUPT = list(range(12))
STEPS = {  # name of the case: method, options, rate
    "standard": ("standard", {}, 0.0),
    "spl": ("spl", {}, 0.3),
    "spl, index": ("spl", {"passes": "index"}, 0.3),
    "prl-l": ("prl-l", {}, 0.3),
    "prl-l, rate 0": ("prl-l", {}, 0.0),
    "prl-l, balanced": ("prl-l", {"balanced": True}, 0.3),
    "prl-l, one row left": ("prl-l", {}, 0.999),
    "prl-g": ("prl-g", {}, 0.3),
    "co-prl-l": ("co-prl-l", {}, 0.3),
    "co-teaching": ("co-teaching", {"passes": "index"}, 0.3),
    "decouple": ("decouple", {}, 0.3),
    "min-sgd": ("min-sgd", {}, 0.0),
    "ignormclip": ("ignormclip", {"norm": 0.5}, 0.0),
    "normclip": ("normclip", {"norm": 0.1}, 0.0),
}
ROW_GRADIENTS = ("prl-g", "ignormclip")  # these need at least one row on every rank


def random_batch(seed):
    """Scores with ties and NaN, a second key, classes and a rate: what ``keep_smallest`` takes."""
    draw = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 40, (), generator=draw))
    values = torch.tensor([0.0, 1.0, 2.0, 3.0, torch.inf, torch.nan])
    scores = torch.rand(rows, generator=draw) if seed % 2 else values[torch.randint(6, (rows,), generator=draw)]
    ties = torch.randint(3, (rows,), generator=draw) if seed % 3 else None
    classes = torch.randint(-1, 3, (rows,), generator=draw) if seed % 5 < 2 else None
    return scores, ties, classes, int(torch.randint(100, (), generator=draw)) / 100


def shard(rows, world, rank, seed):
    """Where this rank's rows stand. The cuts fall anywhere: shards are uneven, and some are empty."""
    draw = torch.Generator().manual_seed(1000 * world + seed)
    cuts = [0, *torch.randint(rows + 1, (world - 1,), generator=draw).sort().values.tolist(), rows]
    return slice(cuts[rank], cuts[rank + 1])


def uneven(world, rank):
    """No shard empty, none like another."""
    cuts = {1: [0, ROWS], 2: [0, 17, ROWS], 4: [0, 3, 29, 30, ROWS]}[world]
    return slice(cuts[rank], cuts[rank + 1])


def corrupt_first(world, rank, rows_of_first):
    """Rank 0 holds the corrupted rows, alone or among others."""
    cuts = torch.linspace(rows_of_first, ROWS, world).long().tolist() if world > 1 else [ROWS]
    cuts = [0, *cuts]
    return slice(cuts[rank], cuts[rank + 1])


class Network(nn.Module):
    """A small network with a parameter that no loss reaches."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.unused = nn.Linear(2, 2)

    def forward(self, inputs):
        return self.layers(inputs)


def classification():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 6, generator=draw), torch.randint(3, (ROWS,), generator=draw)


def corrupted_regression():
    draw = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(ROWS, 6, generator=draw), torch.randn(ROWS, 3, generator=draw)
    targets[CORRUPT] += 50.0
    return inputs, targets


def take_step(method, networks, inputs, targets, rows, rate):
    """A whole step on the rows of one rank, and what is left to compare."""
    networks = [network.train() for network in copy.deepcopy(networks)]
    selections = method.step(networks, inputs[rows], targets[rows], rate)
    ranks.sum_gradients(networks)
    for network in networks:
        method.finish(network)
    return {
        "kept": [selection.kept + rows.start for selection in selections],
        "loss": torch.stack([selection.loss for selection in selections]),
        "gradients": [
            {name: p.grad for name, p in network.named_parameters() if p.grad is not None} for network in networks
        ],
    }


def all_cases(world, rank):
    """Everything that a rank finds, by name."""
    found = {}
    for seed in range(BATCHES):
        scores, ties, classes, rate = random_batch(seed)
        mine = shard(len(scores), world, rank, seed)
        ties, classes = (None if values is None else values[mine] for values in (ties, classes))
        found[f"kept {seed}"] = keep_smallest(scores[mine], rate, ties=ties, classes=classes) + mine.start
    networks = [Network(seed) for seed in range(2)]
    for case, (name, options, rate) in STEPS.items():
        method = METHODS[name](F.cross_entropy, **options)
        step = partial(take_step, method, networks[: method.networks], *classification(), rate=rate)
        found[f"step {case}"] = step(rows=uneven(world, rank))
        if name not in ROW_GRADIENTS:
            last_alone = slice(0, ROWS) if rank == world - 1 else slice(0, 0)
            found[f"empty {case}"] = step(rows=last_alone)
    for rows_of_first in (30, 12):
        for name in ("prl-l", "prl-g", "spl"):
            rows = corrupt_first(world, rank, rows_of_first)
            found[f"corrupt {rows_of_first} {name}"] = take_step(
                METHODS[name](F.mse_loss), networks[:1], *corrupted_regression(), rows, 0.2
            )
    agreed = [networks[0], networks[0]]
    found["agreed"] = take_step(
        METHODS["decouple"](F.cross_entropy), agreed, *classification(), uneven(world, rank), 0.3
    )
    found["total"] = ranks.total(rank + 1, torch.device("cpu"))
    found["refusals"] = {name: refusal(name, networks[0]) for name in ("sever", "coordinate-median")}
    return found


def refusal(name, network):
    try:
        METHODS[name](F.mse_loss).require(network, 8, torch.device("cpu"))
    except InputError as error:
        return str(error)
    return None


def main(rank, folder):
    """One rank, of two and then of four. A file is the meeting point, so that no port is needed."""
    torch.set_num_threads(1)
    for world in WORLDS:
        if rank < world:
            meeting, patience = f"file://{folder}/meeting of {world}", timedelta(seconds=200)
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=patience)
            torch.save(all_cases(world, rank), Path(folder, f"{rank} of {world}.pt"))
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def alone():
    return all_cases(1, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the ranks saved what they found."""
    folder = tmp_path_factory.mktemp("ranks")
    commands = [[sys.executable, __file__, str(rank), str(folder)] for rank in range(max(WORLDS))]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        errors = [process.communicate(timeout=250)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(errors)
    return folder


@pytest.fixture(scope="module", params=WORLDS, ids="{} ranks".format)
def together(request, folder):
    """What each of several ranks found."""
    world = request.param
    return [torch.load(folder / f"{rank} of {world}.pt", weights_only=True) for rank in range(world)]


def assert_same_step(case, alone, together):
    expected, parts = alone[case], [rank[case] for rank in together]
    for network, kept in enumerate(expected["kept"]):
        assert torch.cat([part["kept"][network] for part in parts]).tolist() == kept.tolist()
    torch.testing.assert_close(sum(part["loss"] for part in parts), expected["loss"])
    for part in parts:
        for found, wanted in zip(part["gradients"], expected["gradients"], strict=True):
            assert found.keys() == wanted.keys()
            for name in wanted:
                torch.testing.assert_close(found[name], wanted[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(BATCHES))
def test_the_ranks_keep_the_rows_that_one_process_keeps(seed, alone, together):
    assert torch.cat([rank[f"kept {seed}"] for rank in together]).tolist() == alone[f"kept {seed}"].tolist()


@pytest.mark.parametrize("case", STEPS)
def test_uneven_shards_give_the_gradient_of_one_process(case, alone, together):
    assert_same_step(f"step {case}", alone, together)
    assert (
        alone[f"step {case}"]["gradients"][0].keys() == dict(Network(0).layers.named_parameters(prefix="layers")).keys()
    )


@pytest.mark.parametrize("case", [case for case in STEPS if STEPS[case][0] not in ROW_GRADIENTS])
def test_all_rows_on_one_rank_give_the_gradient_of_one_process(case, alone, together):
    assert_same_step(f"empty {case}", alone, together)


@pytest.mark.parametrize("name", ["prl-l", "prl-g", "spl"])
@pytest.mark.parametrize("rows_of_first", [30, 12])
def test_corrupted_rows_that_sit_together_on_one_rank_are_all_dropped(name, rows_of_first, alone, together):
    """Trimming per rank would keep 6 of these 12. Where they are all that a rank has, it trains on nothing."""
    case = f"corrupt {rows_of_first} {name}"
    kept = torch.cat([rank[case]["kept"][0] for rank in together]).tolist()
    assert kept == [row for row in range(ROWS) if row not in CORRUPT]
    assert len(together[0][case]["kept"][0]) == rows_of_first - 12
    assert_same_step(case, alone, together)


def test_a_step_without_rows_leaves_no_gradient_on_any_rank(together):
    for rank in together:
        assert [len(kept) for kept in rank["agreed"]["kept"]] == [0, 0]
        assert rank["agreed"]["gradients"] == [{}, {}]


def test_methods_that_compare_gradients_refuse_several_ranks(alone, together):
    assert alone["refusals"] == {"sever": None, "coordinate-median": None}
    for rank in together:
        for name, message in rank["refusals"].items():
            assert message == (
                f"{name} needs the gradients of all rows in one process. Use prl-l or prl-g over several ranks."
            )


def test_counts_add_up(alone, together):
    assert alone["total"] == 1
    assert {rank["total"] for rank in together} == {sum(range(len(together) + 1))}


def test_without_ranks_every_function_is_the_identity():
    values = [torch.arange(3), torch.ones(3)]
    gathered = ranks.gather_rows(values)
    assert all(found is given for found, given in zip(gathered.values, values, strict=True))
    assert (gathered.start, gathered.rows, ranks.world_size()) == (0, 3, 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
