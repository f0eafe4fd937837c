"""One batch over several processes: rows gathered, counts and gradients added up.

Without ``torch.distributed`` every function here is the identity. The global batch is the
concatenation of the ranks' batches in rank order; shards may differ in size or be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """How many processes share the batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Gathered(NamedTuple):
    """Values of the global batch, and where this rank's rows stand in it."""

    values: list[Tensor]
    start: int
    rows: int


def gather_rows(values: Sequence[Tensor]) -> Gathered:
    """Each of ``values``, all (n,) here, from all ranks in rank order."""
    rows = len(values[0])
    if world_size() == 1:
        return Gathered(list(values), 0, rows)
    device = values[0].device
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([rows], device=device))
    counts = [int(size) for size in sizes]
    gathered = [_gather_padded(value, counts) for value in values]
    return Gathered(gathered, sum(counts[: dist.get_rank()]), rows)


def _gather_padded(value: Tensor, counts: list[int]) -> Tensor:
    """Uneven shards travel padded to the longest: collectives want equal shapes."""
    padded = value.new_zeros(max(counts))
    padded[: len(value)] = value
    shards = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(shards, padded)
    return torch.cat([shard[:count] for shard, count in zip(shards, counts, strict=True)])


def total(count: int, device: torch.device) -> int:
    """The sum of a count over the ranks."""
    if world_size() == 1:
        return count
    everyone = torch.tensor([count], device=device)
    dist.all_reduce(everyone)
    return int(everyone)


def sum_gradients(networks: Iterable[nn.Module]) -> None:
    """Add up every ``.grad`` over the ranks. A rank that kept no row takes part with zeros.

    A parameter without a gradient on any rank stays without: the optimizer then skips it, as on one rank.
    """
    if world_size() == 1:
        return
    for network in networks:
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not parameters:
            continue
        owners = torch.tensor([int(parameter.grad is not None) for parameter in parameters])
        owners = owners.to(parameters[0].device)
        dist.all_reduce(owners)
        for parameter, ranks_with_gradient in zip(parameters, owners.tolist(), strict=True):
            if ranks_with_gradient == 0:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
