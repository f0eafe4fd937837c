"""A model in shards (FSDP2) through wrong labels: one threshold over all ranks, each with its part of every batch.

torchrun --nproc-per-node 2 examples/fsdp_example.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits import BATCH, DROP_RATE, EPOCHS, LEARNING_RATE, RAMP, corrupted_digits, small_network
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradsieve import RobustLoss


def shard(network: nn.Module) -> None:
    """Give each rank its part of every parameter; layer by layer, so that one layer at a time is whole."""
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (dist.get_world_size(),))
    for layer in network.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)


def train(robust: RobustLoss, epochs: int, rank: int = 0, world: int = 1) -> list[float]:
    """The loss of every step, the mean over the ranks."""
    inputs, labels, _, _ = corrupted_digits()
    network = small_network()
    if world > 1:
        shard(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    curve = []
    for _ in range(epochs):
        for batch, given in zip(inputs.split(BATCH), labels.split(BATCH), strict=True):
            own = slice(len(batch) * rank // world, len(batch) * (rank + 1) // world)
            loss = robust(network(batch[own]), given[own])  # FSDP takes the mean of the ranks' gradients, as DDP does
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            if world > 1:
                dist.all_reduce(mean)
            curve.append(float(mean) / world)
        robust.step()
    return curve


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    robust = RobustLoss(F.cross_entropy, DROP_RATE, ramp=RAMP)
    curve = train(robust, EPOCHS, dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: loss {curve[0]:.4f} at first, {curve[-1]:.4f} at last")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
