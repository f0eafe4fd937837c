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

    Gradients are recorded, even where the caller has switched that off. Each rank has a stream of its own: dropout must
    not hide the same units of different rows. Of several threads the others wait.
    """
    stream = seeds.derive(seed, "dropout", *([ranks.rank()] if ranks.rank() else []))
    with one_at_a_time, single_precision(), torch.enable_grad(), ExitStack() as stack:
        is_cuda = device.type == "cuda"
        if is_cuda:  # of several GPUs, make the run's own the one whose generator is meant
            stack.enter_context(torch.cuda.device(device))
        stack.enter_context(torch.random.fork_rng(devices=[torch.cuda.current_device()] if is_cuda else []))
        stack.enter_context(algorithms_that_repeat())
        torch.default_generator.manual_seed(stream)
        if is_cuda:
            torch.cuda.manual_seed(stream)
        yield


@contextmanager
def algorithms_that_repeat() -> Iterator[None]:
    """Of cuDNN's settings these two alone: whether it is used, and how exact it is, is the caller's choice."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@contextmanager
def drawn_from(seed: int, number: int) -> Iterator[None]:
    """The first weights of a network from a stream of its own, and the caller's random numbers left as they were."""
    with one_at_a_time, single_precision(), torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would reset the caller's generators on every GPU as well.
        torch.default_generator.manual_seed(seeds.derive(seed, "weights", number))
        yield


@contextmanager
def single_precision() -> Iterator[None]:
    """Rows come as 32 bit floats: new tensors, weights among them, do, too, whatever torch's default is."""
    before = torch.get_default_dtype()
    if before == torch.float32:
        yield
        return
    with one_at_a_time:
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
