"""Ledger and tally of a run over several ranks: each rank records its own rows; merged, they equal those of one rank.

A row is judged once an epoch, by one rank. The merged ledger copies each row from that rank: no sum is rounded anew.
Tallies and random streams differ between ranks, and a saved state holds those of all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve import ranks, seeds
from gradsieve.training.ledger import Ledger
from gradsieve.training.state import under
from gradsieve.training.tally import Tally

OWN = ("tally.", "rng.")  # prefixes of the tensors in a state that differ between ranks


def judges(order: Tensor, batch_size: int, steps: range, rows: int, world: int) -> Tensor:
    """Which rank judged each of ``rows`` rows in some ``steps`` of an epoch over ``order``; 0 for rows not judged."""
    first, last = steps.start * batch_size, steps.stop * batch_size
    place = torch.arange(last - first, device=order.device) % batch_size
    begins = torch.tensor(ranks.parts(batch_size, world)[1:], device=order.device)
    judge = torch.zeros(rows, dtype=torch.int64, device=order.device)
    judge[order[first:last]] = torch.searchsorted(begins, place, right=True)
    return judge


def merge(ledger: Ledger, judge: Tensor) -> None:
    """Copy each row's entry from the rank that judged it to all ranks."""
    for column in ledger.tensors().values():
        column.copy_(ranks.sum_over_ranks(column.where(judge == ranks.rank(), 0)))


def summed(tally: Tally) -> Tally:
    """The counts of all ranks, added up in the order of the ranks: the same bits every time."""
    return add_up([Tally(**each) for each in ranks.gather_tensors(tally.tensors())])


def add_up(tallies: list[Tally]) -> Tally:
    """One tally from those of all ranks, which took the same steps."""
    columns = {name: torch.stack([each.tensors()[name] for each in tallies]).sum(0) for name in tallies[0].tensors()}
    return Tally(**{**columns, "steps": tallies[0].steps})


def of_all_ranks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state to save: the first rank's tensors, and those of the others that differ, as ``rankN.NAME``."""
    own = ranks.gather_tensors({name: tensor for name, tensor in tensors.items() if name.startswith(OWN)})
    others = {
        f"rank{number}.{name}": tensor for number, each in enumerate(own[1:], start=1) for name, tensor in each.items()
    }
    return tensors | others


def of_this_rank(tensors: dict[str, Tensor], stream: tuple[int | str, ...]) -> dict[str, Tensor]:
    """This rank's state from a saved one. If the number of ranks has changed, the first rank takes over all counts, and
    the others start new random streams, seeded by ``stream``."""
    shared = {name: tensor for name, tensor in tensors.items() if not name.startswith("rank")}
    world = 1 + sum(name.startswith("rank") and name.endswith(".rng.cpu") for name in tensors)
    rank = ranks.rank()
    if world == ranks.world_size():
        return shared | under(tensors, f"rank{rank}.")
    whole = add_up([Tally(**under(tensors, f"rank{each}.tally." if each else "tally.")) for each in range(world)])
    counts = {f"tally.{name}": column for name, column in whole.tensors().items()}
    if rank == 0:
        return shared | counts
    empty = {name: column if name == "tally.steps" else torch.zeros_like(column) for name, column in counts.items()}
    return {name: tensor for name, tensor in (shared | empty).items() if name != "rng.cuda"} | fresh_stream(stream)


def fresh_stream(stream: tuple[int | str, ...]) -> dict[str, Tensor]:
    """The random state of this rank at the start of ``stream``."""
    seed, *path = stream
    return {"rng.cpu": seeds.generator(int(seed), *path, ranks.rank()).get_state()}
