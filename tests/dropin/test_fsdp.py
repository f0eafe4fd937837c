"""A model that FSDP2 keeps in shards over two ranks gives the loss curve of one process."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from gradsieve import RobustLoss, robust_step
from gradsieve.errors import InputError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORLD, EPOCHS = 2, 2
SCORES = ("gradient", "loss")  # PRL(L) and SPL
WRAPPERS = ("fully_shard", "FullyShardedDataParallel")


def curve(score, rank=0, world=1):
    from fsdp_example import train

    return train(RobustLoss(F.cross_entropy, 0.4, ramp=2, score=score), EPOCHS, rank, world)


def refusal(method, wrap):
    from digits import small_network
    from fsdp_example import shard

    network = small_network()
    if wrap == "fully_shard":
        shard(network, torch.device("cpu"))
    else:
        network = nn.Sequential(FullyShardedDataParallel(network, device_id=torch.device("cpu")))
    inputs, labels = torch.randn(8, 64), torch.arange(8)
    try:
        robust_step(network, inputs, labels, criterion=F.cross_entropy, drop_rate=0.4, method=method)
    except InputError as error:
        return str(error)
    return None


def main(rank, folder):
    sys.path.insert(0, str(EXAMPLES))
    torch.set_num_threads(1)
    found = {"alone": {score: curve(score) for score in SCORES}} if rank == 0 else {}
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=100))
    found["sharded"] = {score: curve(score, rank, WORLD) for score in SCORES}
    found["refusals"] = {wrap: [refusal("prl-g", wrap), refusal("prl-l", wrap)] for wrap in WRAPPERS}
    torch.save(found, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(run_ranks):
    folder = run_ranks(__file__, WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("score", SCORES)
def test_shards_give_the_loss_curve_of_one_process(score, found):
    alone = found[0]["alone"][score]
    assert alone[-1] < alone[0]
    for rank in found:
        torch.testing.assert_close(torch.tensor(rank["sharded"][score]), torch.tensor(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_step_that_adds_up_gradients_itself_refuses_shards(wrap, found):
    for rank in found:
        for message in rank["refusals"][wrap]:
            assert message.startswith(f"models is sharded by {wrap}")
            assert "RobustLoss" in message
