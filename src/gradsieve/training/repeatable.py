"""The same random numbers and the same algorithms, every time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from gradsieve import ranks, seeds

one_at_a_time = threading.RLock()  # torch has one default generator for all threads


@contextmanager
def reproducible(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from the seed, algorithms that repeat, and the caller's generators left as they were.

    Each rank has a stream of its own: dropout must not hide the same units of different rows. Of several threads the
    others wait.
    """
    stream = seeds.derive(seed, "dropout", *([ranks.rank()] if ranks.rank() else []))
    with one_at_a_time, ExitStack() as stack:
        is_cuda = device.type == "cuda"
        if is_cuda:  # of several GPUs, make the run's own the one whose generator is meant
            stack.enter_context(torch.cuda.device(device))
        stack.enter_context(torch.random.fork_rng(devices=[torch.cuda.current_device()] if is_cuda else []))
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True))
        torch.default_generator.manual_seed(stream)
        if is_cuda:
            torch.cuda.manual_seed(stream)
        yield
