"""The group of processes: its size, how it is made from torchrun's environment, and what is said when a rank dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from gradsieve.arguments import argument
from gradsieve.errors import InputError, RankError

# How long to wait for a rank that hangs. One that dies is noticed at once, because its connections close.
RANK_TIMEOUT = timedelta(seconds=float(os.environ.get("GRADSIEVE_RANK_TIMEOUT", "300")))
SIGNS_OF_LOSS = ("gloo", "nccl", "connection", "timed out", "timeout", "socket")  # in errors of torch's collectives
_ALONE: list[None] = []  # an entry for each open block of alone()


def world_size() -> int:
    """How many processes share the batch."""
    if _ALONE or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return rank() == 0


@contextmanager
def alone() -> Iterator[None]:
    """A block in which each rank acts as if it were the only one: nothing is gathered or added up."""
    _ALONE.append(None)
    try:
        yield
    finally:
        _ALONE.pop()


@contextmanager
def joined(device: str = "auto") -> Iterator[None]:
    """Join the ranks that torchrun started while the block runs; without torchrun, do nothing.

    CPU tensors are sent by gloo, those of a GPU by NCCL. Each rank takes the GPU of its number on its machine.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ or dist.is_initialized():
        yield
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        take_gpu(device, int(os.environ.get("LOCAL_RANK", "0")))
    first = os.environ["RANK"] == "0"
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=RANK_TIMEOUT)
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        reason = str(error).splitlines()[0].split("] ", 1)[-1].split(". ")[0]  # without the line of torch's source
        # Not destroyed: that would wait for the rank that is gone.
        raise RankError(
            f"A rank died, or did not answer for {RANK_TIMEOUT.total_seconds():.0f} seconds ({reason}). Start all of "
            f"them again: {argument('resume', True)} goes on from the last saved state.",
            quiet=not first,
        ) from error
    dist.destroy_process_group()


def take_gpu(device: str, number: int) -> None:
    """Make the GPU of this rank's number on its machine the current one."""
    if device not in ("auto", "cuda"):
        raise InputError(
            f"{argument('device')} is {device!r}, but each rank takes a GPU of its own. Leave it out, or use cpu."
        )
    if number >= torch.cuda.device_count():
        raise InputError(
            f"Rank {number} of this machine has no GPU: there are {torch.cuda.device_count()}. Start at most as many "
            f"ranks (torchrun's nproc-per-node), or use {argument('device', 'cpu')}."
        )
    torch.cuda.set_device(number)


def is_loss(error: RuntimeError) -> bool:
    """Whether an error comes from a collective that lost a rank."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(sign in text for sign in SIGNS_OF_LOSS)
