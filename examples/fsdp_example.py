"""A model in shards (FSDP2) through wrong labels: one threshold over all ranks, each with its part of every batch.

torchrun --nproc-per-node 2 examples/fsdp_example.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits import BATCH, DROP_RATE, EPOCHS, LEARNING_RATE, RAMP, corrupted_digits, small_network
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradsieve import RobustLoss

CPU = torch.device("cpu")


def shard(network: nn.Module, device: torch.device) -> None:
    """Give each rank its part of every parameter; layer by layer, so that one layer at a time is whole."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in network.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)


def train(robust: RobustLoss, epochs: int, rank: int = 0, world: int = 1, device: torch.device = CPU) -> list[float]:
    """The loss of every step, the mean over the ranks."""
    inputs, labels, _, _ = corrupted_digits()
    inputs, labels, network = inputs.to(device), labels.to(device), small_network().to(device)
    if world > 1:
        shard(network, device)
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
    device = CPU
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # torchrun: each rank of a machine has its own GPU
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    robust = RobustLoss(F.cross_entropy, DROP_RATE, ramp=RAMP)
    curve = train(robust, EPOCHS, dist.get_rank(), dist.get_world_size(), device)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: loss {curve[0]:.4f} at first, {curve[-1]:.4f} at last")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
