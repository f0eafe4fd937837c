"""What a step over many ranks moves and waits for, on paper: bytes and seconds by rows, parameters, ranks and network.

The collectives are taken as rings for bytes and as trees for latency, which is what NCCL and gloo come to. Nothing here
is measured; ``gradsieve bench --ranks`` measures what one machine can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradsieve.ranks.radix import MOST_GATHERED, RADIX_BYTES

KEY_BYTES = 8  # a row: its score, and the loss that decides between equal ones
LEDGER_BYTES = 16  # a row: three counts and a sum
ORDER_BYTES = 24  # a row: the epoch's order, the rows that it is drawn from, and who judged whom while ledgers merge
MESSAGES = 6  # of a step to select: at most four for the threshold, and two counts, of the batch and of what is kept


@dataclass(frozen=True)
class Cluster:
    """Ranks and what is between them."""

    ranks: int
    bytes_a_second: float  # from one rank to the next
    latency: float  # seconds of one hop


@dataclass(frozen=True)
class Job:
    """What is trained."""

    parameters: int
    rows_a_rank: int  # of a batch
    rows: int  # of the data set
    seconds_a_row: float  # forward, backward and scores, on one rank
    gradient_bytes: int = 4  # of one parameter


@dataclass(frozen=True)
class Cost:
    """What a rank moves, holds and waits for."""

    gradient_bytes: float  # a step
    selection_bytes: float  # a step
    compute_seconds: float  # a step
    gradient_seconds: float
    selection_seconds: float
    ledger_bytes: float  # an epoch, to merge
    ledger_seconds: float
    held_bytes: float  # for the rows of the data set, on each rank

    @property
    def step_seconds(self) -> float:
        """With no overlap of computing and moving, which is the worst case."""
        return self.compute_seconds + self.gradient_seconds + self.selection_seconds

    @property
    def selection_share(self) -> float:
        """Of a step."""
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
    """What a rank sends, and receives, to have the sum of everybody's ``content`` bytes: once around, twice."""
    return 2 * (ranks - 1) / ranks * content


def all_gather_bytes(content: float, ranks: int) -> float:
    """The same to have everybody's part of ``content`` bytes."""
    return (ranks - 1) / ranks * content


def selection_bytes(batch: int, ranks: int) -> float:
    """What one threshold over a batch moves: every row's score, or histograms of them where that is less."""
    if batch * KEY_BYTES <= MOST_GATHERED:
        return all_gather_bytes(batch * KEY_BYTES, ranks)
    return all_reduce_bytes(RADIX_BYTES, ranks)


def seconds(content: float, messages: int, cluster: Cluster) -> float:
    """Of some messages of ``content`` bytes in all."""
    hops = 2 * math.ceil(math.log2(cluster.ranks)) if cluster.ranks > 1 else 0
    return content / cluster.bytes_a_second + messages * hops * cluster.latency
