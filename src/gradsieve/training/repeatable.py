"""Reproducible runs: fixed random numbers, and algorithms that are deterministic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from gradsieve import ranks, seeds
from gradsieve.errors import InputError

one_at_a_time = threading.RLock()  # torch has one default generator for all threads


@contextmanager
def reproducible(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, use deterministic algorithms, and restore the caller's random state at the end.

    Gradients are recorded, even if the caller has switched that off. Each rank has its own stream: dropout must not
    hide the same units for the rows of every rank. Other threads that ask for this wait.
    """
    refuse_inference_mode()
    stream = seeds.derive(seed, "dropout", *([ranks.rank()] if ranks.rank() else []))
    with one_at_a_time, single_precision(), torch.enable_grad(), ExitStack() as stack:
        is_cuda = device.type == "cuda"
        if is_cuda:  # of several GPUs, seed the generator of the run's own
            stack.enter_context(torch.cuda.device(device))
        stack.enter_context(torch.random.fork_rng(devices=[torch.cuda.current_device()] if is_cuda else []))
        stack.enter_context(algorithms_that_repeat())
        torch.default_generator.manual_seed(stream)
        if is_cuda:
            torch.cuda.manual_seed(stream)
        yield


def refuse_inference_mode() -> None:
    """Raise inside torch.inference_mode: what it makes, such as the rows, can never be learnt from."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            "Training needs gradients, which torch.inference_mode rules out for all tensors that are made in it. Train "
            "outside of it, or use torch.no_grad in its place, which does no harm here."
        )


@contextmanager
def algorithms_that_repeat() -> Iterator[None]:
    """Set cuDNN to be deterministic. Its other settings (whether it is used, TF32) stay as the caller chose them."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@contextmanager
def drawn_from(seed: int, number: int) -> Iterator[None]:
    """Draw the initial weights of network ``number`` from their own stream; the caller's random state is restored."""
    with one_at_a_time, single_precision(), torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would reset the caller's generators on every GPU as well.
        torch.default_generator.manual_seed(seeds.derive(seed, "weights", number))
        yield


@contextmanager
def single_precision() -> Iterator[None]:
    """Make new tensors, such as weights, float32 like the rows, whatever torch's default dtype is."""
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
