"""A batch over two and four processes gives what one process gives: the same rows, the same gradient.

Each of the processes works through all cases on its shard and saves what it found.
"""

import copy
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from gradsieve import ranks
from gradsieve.counts import keep_count
from gradsieve.errors import GradsieveError, InputError
from gradsieve.methods import METHODS
from gradsieve.ranks.collectives import SMALL, kinds_of
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
    "co-prl-g": ("co-prl-g", {}, 0.3),
    "co-prl-l": ("co-prl-l", {}, 0.3),
    "co-teaching": ("co-teaching", {"passes": "index"}, 0.3),
    "decouple": ("decouple", {}, 0.3),
    "min-sgd": ("min-sgd", {}, 0.0),
    "min-sgd, groups": ("min-sgd", {"group": 7}, 0.0),
    "sever": ("sever", {}, 0.3),
    "coordinate-median": ("coordinate-median", {}, 0.0),
    "bootstrap": ("bootstrap", {}, 0.0),
    "ignormclip": ("ignormclip", {"norm": 0.5}, 0.0),
    "normclip": ("normclip", {"norm": 0.1}, 0.0),
}
CHOOSING = [case for case in STEPS if METHODS[STEPS[case][0]].drops_rows or case == "decouple"]
NORMED = {  # the same, for a network with BatchNorm over all ranks
    "standard": ("standard", {}, 0.0),
    "prl-l": ("prl-l", {}, 0.3),
    "prl-l, index": ("prl-l", {"passes": "index"}, 0.3),
    "prl-l, train form": ("prl-l", {"scoring": "train"}, 0.3),
    "prl-l, one row left": ("prl-l", {}, 0.95),
    "prl-g": ("prl-g", {}, 0.3),
    "co-teaching": ("co-teaching", {}, 0.3),
    "decouple": ("decouple", {}, 0.3),
    "ignormclip": ("ignormclip", {"norm": 0.5}, 0.0),
    "sever": ("sever", {}, 0.3),
}


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
    """The slice of this rank's rows. The cuts are random: shards are uneven, and some are empty."""
    draw = torch.Generator().manual_seed(1000 * world + seed)
    cuts = [0, *torch.randint(rows + 1, (world - 1,), generator=draw).sort().values.tolist(), rows]
    return slice(cuts[rank], cuts[rank + 1])


def uneven(world, rank):
    """The slice of this rank's rows if no shard is empty and all differ in size."""
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


class Normed(nn.Module):
    """A network that mixes rows in BatchNorm."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 8)
        )
        self.head = nn.Sequential(nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 3))
        ranks.norm_over_ranks(self, "sync")

    def forward(self, inputs):
        return self.head(self.layers(inputs))


def classification(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, 6, generator=draw), torch.randint(3, (ROWS,), generator=draw)


def corrupted_regression():
    draw = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(ROWS, 6, generator=draw), torch.randn(ROWS, 3, generator=draw)
    targets[CORRUPT] += 50.0
    return inputs, targets


def take_step(method, networks, inputs, targets, rows, rate):
    """A whole step on the rows of one rank; returns what to compare."""
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
        "buffers": [dict(network.named_buffers()) for network in networks],
    }


def all_cases(world, rank):
    """All results of a rank, by name."""
    found = {}
    for seed in range(BATCHES):
        scores, ties, classes, rate = random_batch(seed)
        mine = shard(len(scores), world, rank, seed)
        ties, classes = (None if values is None else values[mine] for values in (ties, classes))
        found[f"kept {seed}"] = keep_smallest(scores[mine], rate, ties=ties, classes=classes) + mine.start
        if classes is None:
            found[f"radix {seed}"] = ranks.keep_by_radix(scores[mine], ties, keep_count(rate, len(scores))) + mine.start
    networks = [Network(seed) for seed in range(2)]
    for case, (name, options, rate) in STEPS.items():
        method = METHODS[name](F.cross_entropy, **options)
        step = partial(take_step, method, networks[: method.networks], *classification(), rate=rate)
        found[f"step {case}"] = step(rows=uneven(world, rank))
        last_alone = slice(0, ROWS) if rank == world - 1 else slice(0, 0)
        found[f"empty {case}"] = step(rows=last_alone)
        if case in CHOOSING:
            doubles = [copy.deepcopy(network).double() for network in networks[: method.networks]]
            found[f"batches {case}"] = [kept_of(method, doubles, seed, rate, world, rank) for seed in range(BATCHES)]
    normed = [Normed(seed).double() for seed in range(2)]
    for case, (name, options, rate) in NORMED.items():
        method = METHODS[name](F.cross_entropy, **options)
        inputs, targets = classification()
        step = partial(take_step, method, normed[: method.networks], inputs.double(), targets, rate=rate)
        found[f"normed {case}"] = step(rows=uneven(world, rank))
        found[f"normed empty {case}"] = step(rows=slice(0, ROWS) if rank == world - 1 else slice(0, 0))
    for rows_of_first in (30, 12):
        for name in ("prl-l", "prl-g", "spl"):
            rows = corrupt_first(world, rank, rows_of_first)
            found[f"corrupt {rows_of_first} {name}"] = take_step(
                METHODS[name](F.mse_loss), networks[:1], *corrupted_regression(), rows, 0.2
            )
    with ranks.alone():
        found["corrupt, rank by rank"] = take_step(
            METHODS["prl-l"](F.mse_loss), networks[:1], *corrupted_regression(), corrupt_first(world, rank, 30), 0.2
        )
    agreed = [networks[0], networks[0]]
    found["agreed"] = take_step(
        METHODS["decouple"](F.cross_entropy), agreed, *classification(), uneven(world, rank), 0.3
    )
    found["many"] = keep_many(world, rank)
    found["total"] = ranks.total(rank + 1, torch.device("cpu"))
    found["refusals"] = {name: refusal(name, normed[0]) for name in TRAIN_FORM}
    found["saturated"] = saturated(networks[0], uneven(world, rank))
    found["spoken"] = spoken(rank)
    return found


def kept_of(method, networks, seed, rate, world, rank):
    """The rows that each network keeps of a random batch with random shards."""
    inputs, targets = classification(seed)
    rows = shard(ROWS, world, rank, seed)
    see = method.train_look if method.passes_of(networks) == "index" else method.look
    looks = [see(network, inputs[rows].double(), targets[rows]) for network in networks]
    return [kept + rows.start for kept in method.choose(looks, targets[rows], rate)]


def many_scores():
    """More rows than are gathered, with ties."""
    draw = torch.Generator().manual_seed(0)
    return torch.rand(150_000, generator=draw).round(decimals=3), torch.rand(150_000, generator=draw)


def keep_many(world, rank):
    scores, ties = many_scores()
    mine = shard(len(scores), world, rank, 0)
    return keep_smallest(scores[mine], 0.3, ties=ties[mine]) + mine.start


def saturated(network, rows):
    """Absolute errors: nearly all gradients are equal, and the loss decides."""
    inputs, targets = corrupted_regression()
    return take_step(METHODS["prl-l"](F.l1_loss), [network], inputs, targets, rows, 0.4)


def spoken(rank):
    """What ranks tell each other."""

    def fails_on_last():
        if rank == ranks.world_size() - 1 and rank:
            raise InputError("no such file")
        return rank

    def told(action):
        try:
            return action()
        except GradsieveError as error:
            return {"message": str(error), "quiet": getattr(error, "quiet", False)}

    tensors = {"a": torch.arange(3) + rank, "b": torch.full((2, 2), float(rank)), "c": torch.tensor(rank == 0)}
    return {
        "from first": ranks.from_first({"rank": rank}),
        "agreed": told(lambda: ranks.agreed(lambda: rank)),
        "failed": told(fails_on_last if ranks.world_size() == 1 else partial(ranks.agreed, fails_on_last)),
        "unlike": told(partial(ranks.require_alike, "a run", {"epochs": 3, "seed": rank // 2})),
        "tensors": ranks.tensors_from_first(tensors, kinds_of(tensors)),
        "gathered": ranks.gather_tensors(tensors),
        "largest": ranks.largest([rank, 5 - rank]),
        "alone": alone_total(rank),
        "border": {size: ranks.gather_rows([numbered(size + rank, rank)]).values[0] for size in BORDER},
        "averaged": averaged(rank),
    }


BORDER = [SMALL - 1, SMALL, SMALL + 1, SMALL + 7]  # bytes that fit the first message, and that need a second one


def numbered(rows, rank):
    return ((torch.arange(rows) + 3 * rank) % 251).to(torch.uint8)


def averaged(rank):
    """The running statistics of BatchNorm layers, of each rank and then averaged."""
    network = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(3))
    for number, layer in enumerate(network):
        layer.running_mean.fill_(rank + number)
        layer.running_var.fill_(10.0 * rank)
    ranks.average_statistics(network)
    return {name: buffer for name, buffer in network.named_buffers() if buffer.dim()}


def alone_total(rank):
    with ranks.alone():
        return [ranks.total(rank, torch.device("cpu")), ranks.world_size(), ranks.rank()]


TRAIN_FORM = ("sever", "coordinate-median", "prl-g", "ignormclip")


def refusal(name, network):
    options = {} if name == "coordinate-median" else {"scoring": "train"}
    try:
        METHODS[name](F.mse_loss, **options).require(network, 8, torch.device("cpu"))
    except InputError as error:
        return str(error)
    return None


def main(rank, folder):
    """One rank, of two and then of four. They meet by a file, so that no port is needed."""
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
def folder(run_ranks):
    """The folder where the ranks saved their results."""
    return run_ranks(__file__, max(WORLDS))


@pytest.fixture(scope="module", params=WORLDS, ids="{} ranks".format)
def together(request, folder):
    """The results of each rank."""
    world = request.param
    return [torch.load(folder / f"{rank} of {world}.pt", weights_only=True) for rank in range(world)]


def assert_same_step(case, alone, together, tolerance=1e-6):
    expected, parts = alone[case], [rank[case] for rank in together]
    for network, kept in enumerate(expected["kept"]):
        assert torch.cat([part["kept"][network] for part in parts]).tolist() == kept.tolist()
    torch.testing.assert_close(sum(part["loss"] for part in parts), expected["loss"])
    for part in parts:
        for found, wanted in zip(part["gradients"], expected["gradients"], strict=True):
            assert found.keys() == wanted.keys()
            for name in wanted:
                torch.testing.assert_close(found[name], wanted[name], rtol=tolerance, atol=tolerance)
        for found, wanted in zip(part["buffers"], expected["buffers"], strict=True):
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        assert_same_bits(part["gradients"], parts[0]["gradients"])


def assert_same_bits(found, wanted):
    """Ranks that update alike stay alike."""
    for own, first in zip(found, wanted, strict=True):
        assert all(own[name].equal(first[name]) for name in first)


@pytest.mark.parametrize("seed", range(BATCHES))
def test_the_ranks_keep_the_rows_that_one_process_keeps(seed, alone, together):
    assert torch.cat([rank[f"kept {seed}"] for rank in together]).tolist() == alone[f"kept {seed}"].tolist()
    if f"radix {seed}" in alone:
        assert torch.cat([rank[f"radix {seed}"] for rank in together]).tolist() == alone[f"kept {seed}"].tolist()


@pytest.mark.parametrize("case", STEPS)
def test_uneven_shards_give_the_gradient_of_one_process(case, alone, together):
    assert_same_step(f"step {case}", alone, together)
    with_gradient = alone[f"step {case}"]["gradients"][0].keys()
    if case != "coordinate-median":  # there the median without rows is 0
        assert with_gradient == dict(Network(0).layers.named_parameters(prefix="layers")).keys()


@pytest.mark.parametrize("case", CHOOSING)
def test_every_method_keeps_the_rows_of_one_process_on_random_batches(case, alone, together):
    for seed, expected in enumerate(alone[f"batches {case}"]):
        for network, kept in enumerate(expected):
            found = torch.cat([rank[f"batches {case}"][seed][network] for rank in together])
            assert found.tolist() == kept.tolist(), seed


@pytest.mark.parametrize("case", NORMED)
@pytest.mark.parametrize("shards", ["normed", "normed empty"])
def test_batchnorm_over_all_ranks_gives_the_step_of_one_process(case, shards, alone, together):
    assert_same_step(f"{shards} {case}", alone, together, tolerance=1e-10)


def test_equal_scores_are_told_apart_as_in_one_process(alone, together):
    assert_same_step("saturated", alone, together)


@pytest.mark.parametrize("case", STEPS)
def test_all_rows_on_one_rank_give_the_gradient_of_one_process(case, alone, together):
    assert_same_step(f"empty {case}", alone, together)


@pytest.mark.parametrize("name", ["prl-l", "prl-g", "spl"])
@pytest.mark.parametrize("rows_of_first", [30, 12])
def test_corrupted_rows_that_sit_together_on_one_rank_are_all_dropped(name, rows_of_first, alone, together):
    """A rank that has only such rows trains on nothing."""
    case = f"corrupt {rows_of_first} {name}"
    kept = torch.cat([rank[case]["kept"][0] for rank in together]).tolist()
    assert kept == [row for row in range(ROWS) if row not in CORRUPT]
    assert len(together[0][case]["kept"][0]) == rows_of_first - 12
    assert_same_step(case, alone, together)


def test_trimming_rank_by_rank_would_keep_half_of_them(together):
    kept = torch.cat([rank["corrupt, rank by rank"]["kept"][0] for rank in together]).tolist()
    assert len(set(kept) & set(CORRUPT)) == 6


def test_a_step_without_rows_leaves_no_gradient_on_any_rank(together):
    for rank in together:
        assert [len(kept) for kept in rank["agreed"]["kept"]] == [0, 0]
        assert rank["agreed"]["gradients"] == [{}, {}]


def test_rows_cannot_be_told_apart_behind_batchnorm_over_all_ranks(alone, together):
    assert set(alone["refusals"].values()) == {None}
    for rank in together:
        for name, message in rank["refusals"].items():
            assert message.startswith(f"{name} takes each row's gradient in train form, where BatchNorm over all ranks")
            assert "batchnorm 'local'" in message


def test_what_the_first_rank_says_holds_for_all(together):
    for rank in together:
        assert rank["spoken"]["from first"] == {"rank": 0}
        tensors = rank["spoken"]["tensors"]
        assert tensors["a"].tolist() == [0, 1, 2]
        assert tensors["b"].tolist() == [[0, 0], [0, 0]]
        assert tensors["c"].item() is True
        assert [each["a"].tolist()[0] for each in rank["spoken"]["gathered"]] == list(range(len(together)))
        assert rank["spoken"]["largest"] == [len(together) - 1, 5]


@pytest.mark.parametrize("size", BORDER)
def test_rows_about_as_many_as_a_message_holds_arrive_whole(size, together):
    expected = torch.cat([numbered(size + rank, rank) for rank in range(len(together))])
    assert all(rank["spoken"]["border"][size].equal(expected) for rank in together)


def test_local_batchnorm_goes_on_with_the_mean_of_what_the_ranks_saw(together):
    mean = sum(range(len(together))) / len(together)
    expected = {"0.running_mean": [mean] * 2, "0.running_var": [10 * mean] * 2}
    expected |= {"1.running_mean": [mean + 1] * 3, "1.running_var": [10 * mean] * 3}
    for rank in together:
        assert {name: each.tolist() for name, each in rank["spoken"]["averaged"].items()} == expected


def test_where_one_rank_fails_all_stop_and_the_first_says_why(together):
    last = len(together) - 1
    for number, rank in enumerate(together):
        assert rank["spoken"]["agreed"] == number
        assert rank["spoken"]["failed"] == {"message": f"rank {last}: no such file", "quiet": number > 0}


def test_ranks_of_different_runs_are_refused(together):
    if len(together) < 4:
        return
    message = "rank 2 has a run of its own (seed is 1 there, 0 here). Start all ranks alike."
    assert [rank["spoken"]["unlike"] for rank in together] == [{"message": message, "quiet": n > 0} for n in range(4)]


def test_a_block_may_be_each_ranks_own_affair(together):
    assert [rank["spoken"]["alone"] for rank in together] == [[number, 1, 0] for number in range(len(together))]


def test_more_rows_than_are_gathered_are_told_apart_by_histograms(alone, together):
    scores, ties = many_scores()
    assert scores.nbytes + ties.nbytes > ranks.MOST_GATHERED
    assert torch.cat([rank["many"] for rank in together]).equal(alone["many"])


def test_counts_add_up(alone, together):
    assert alone["total"] == 1
    assert {rank["total"] for rank in together} == {sum(range(len(together) + 1))}


def test_without_ranks_every_function_is_the_identity():
    values = [torch.arange(3), torch.ones(3)]
    gathered = ranks.gather_rows(values)
    assert all(found is given for found, given in zip(gathered.values, values, strict=True))
    assert (gathered.start, gathered.rows, gathered.sizes, ranks.world_size()) == (0, 3, [3], 1)
