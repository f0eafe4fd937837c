"""A model of a step over many ranks: bytes sent and seconds, by numbers of rows, parameters and ranks, and by network.

Collectives are modelled as rings for their bytes and as trees for their latency, close to NCCL and gloo. Nothing here
is measured; ``gradsieve bench --ranks`` measures on one machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradsieve.ranks.radix import MOST_GATHERED, RADIX_BYTES

KEY_BYTES = 8  # per row: its score, and the loss that breaks ties
LEDGER_BYTES = 16  # per row: three counts and a sum
ORDER_BYTES = 24  # per row: its place in the epoch's order, its index, and which rank judged it (for merging ledgers)
MESSAGES = 6  # collectives per selection: at most four for the threshold, and two counts, of the batch and of kept rows


@dataclass(frozen=True)
class Cluster:
    """Ranks and the network between them."""

    ranks: int
    bytes_a_second: float  # from one rank to the next
    latency: float  # seconds per hop


@dataclass(frozen=True)
class Job:
    """What is trained."""

    parameters: int
    rows_a_rank: int  # of a batch
    rows: int  # of the data set
    seconds_a_row: float  # forward, backward and scores, on one rank
    gradient_bytes: int = 4  # per parameter


@dataclass(frozen=True)
class Cost:
    """Bytes that a rank sends and holds, and seconds that it takes."""

    gradient_bytes: float  # per step, as the next four
    selection_bytes: float
    compute_seconds: float
    gradient_seconds: float
    selection_seconds: float
    ledger_bytes: float  # per epoch, to merge the ledgers
    ledger_seconds: float  # per epoch
    held_bytes: float  # per rank, for the rows of the data set

    @property
    def step_seconds(self) -> float:
        """The worst case: computation and communication do not overlap."""
        return self.compute_seconds + self.gradient_seconds + self.selection_seconds

    @property
    def selection_share(self) -> float:
        """The share of a step's time that the selection takes."""
        return self.selection_seconds / self.step_seconds


def cost(job: Job, cluster: Cluster) -> Cost:
    """What a job costs on a cluster."""
    batch = job.rows_a_rank * cluster.ranks
    gradient = all_reduce_bytes(job.parameters * job.gradient_bytes, cluster.ranks)
    selection = selection_bytes(batch, cluster.ranks)
    ledger = all_reduce_bytes(job.rows * LEDGER_BYTES, cluster.ranks)
    return Cost(
        gradient_bytes=gradient,
        selection_bytes=selection,
        compute_seconds=job.rows_a_rank * job.seconds_a_row,
        gradient_seconds=seconds(gradient, 1, cluster),
        selection_seconds=seconds(selection, MESSAGES, cluster),
        ledger_bytes=ledger,
        ledger_seconds=seconds(ledger, 4, cluster),
        held_bytes=job.rows * (LEDGER_BYTES + ORDER_BYTES),
    )


def all_reduce_bytes(content: float, ranks: int) -> float:
    """What a rank sends, and receives, to sum ``content`` bytes over all ranks: two rounds of a ring."""
    return 2 * (ranks - 1) / ranks * content


def all_gather_bytes(content: float, ranks: int) -> float:
    """The same to collect every rank's part of ``content`` bytes: one round."""
    return (ranks - 1) / ranks * content


def selection_bytes(batch: int, ranks: int) -> float:
    """What a rank sends to find one threshold over a batch: scores of all rows or, in large batches, histograms."""
    if batch * KEY_BYTES <= MOST_GATHERED:
        return all_gather_bytes(batch * KEY_BYTES, ranks)
    return all_reduce_bytes(RADIX_BYTES, ranks)


def seconds(content: float, messages: int, cluster: Cluster) -> float:
    """The time of some messages of ``content`` bytes in all."""
    hops = 2 * math.ceil(math.log2(cluster.ranks)) if cluster.ranks > 1 else 0
    return content / cluster.bytes_a_second + messages * hops * cluster.latency
