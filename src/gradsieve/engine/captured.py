"""A whole step as one CUDA graph: a single launch, so that a step never waits for the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

WARM_STEPS = 3  # before a capture: libraries choose algorithms, and buffers and the optimizer's state are made


def capture(
    body: Callable[[], None], tensors: Callable[[], Mapping[str, Tensor]], pool: Any = None
) -> torch.cuda.CUDAGraph:
    """A graph of ``body``, which may change only ``tensors()``, in place. The capture leaves them as they were.

    ``pool``: the memory of other graphs that never run at the same time.
    """
    before = {name: (tensor, tensor.clone()) for name, tensor in tensors().items()}
    random_numbers = torch.get_rng_state(), torch.cuda.get_rng_state()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(WARM_STEPS):
                body()
        torch.cuda.current_stream().wait_stream(side)
    finally:
        for tensor, values in before.values():
            tensor.copy_(values)
        for name, tensor in tensors().items():
            if name not in before:  # what the first step made, such as an optimizer's moments, starts at 0
                tensor.zero_()
        torch.set_rng_state(random_numbers[0])
        torch.cuda.set_rng_state(random_numbers[1])
    graph = torch.cuda.CUDAGraph()
    # Another thread, such as a loader's that pins memory, must not make the capture fail.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        body()
    return graph
