"""CUDA graphs that judge a batch: on a GPU the many small kernels of a selection cost more to launch than to run.

When a kind of batch (shapes, types, drop rate) has come a few times, its judgement is captured as a CUDA graph. Later
batches of this kind are copied into the graph's inputs and judged in one launch. Each replay overwrites the results of
the last one: whoever keeps them longer must copy them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradsieve.engine.captured import capture

Judge = Callable[[Tensor, Tensor], Sequence[Tensor | None]]

TIMES = 3  # batches of a kind until it is captured: a rare kind, such as an epoch's last batch, would not pay
MOST_KINDS = 16  # graphs held at a time: each rate of a ramp makes new kinds, and so does each size of batch
MOST_VALUES = 2**22  # output values of a batch: with more, the kernels take longer than their launches


class Replays:
    """The captured judgements, by kind of batch."""

    def __init__(self) -> None:
        self.seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, Replay] = {}
        self.works = True

    def __reduce__(self) -> Any:  # a graph cannot be copied or saved; a copy captures its own
        return Replays, ()

    def count_anew(self) -> None:
        """Forget how often kinds came. At a new rate none of them comes again, and a rate may change in every step."""
        self.seen.clear()

    def judge(self, judge: Judge, outputs: Tensor, targets: Tensor, settings: Hashable) -> Sequence[Tensor | None]:
        """``judge(outputs, targets)``; ``settings`` stands for all else that it depends on."""
        kind = (settings, *map(described, (outputs, targets)))
        if kind not in self.graphs and not self.captured(kind, judge, outputs, targets):
            return judge(outputs, targets)
        return self.graphs[kind](outputs, targets)

    def captured(self, kind: Hashable, judge: Judge, outputs: Tensor, targets: Tensor) -> bool:
        """Capture this kind of batch if it has come often enough; whether that was so and worked."""
        self.seen[kind] += 1
        if not self.works or self.seen[kind] < TIMES:
            return False
        if len(self.graphs) == MOST_KINDS:  # the oldest is most likely of a rate that is over
            del self.graphs[next(iter(self.graphs))]
        try:
            self.graphs[kind] = Replay(judge, outputs, targets)
        except RuntimeError:  # the user's criterion waits for the device: nothing is lost but speed
            self.works = False
        return self.works


class Replay:
    """The captured judgement of one kind of batch."""

    def __init__(self, judge: Judge, outputs: Tensor, targets: Tensor) -> None:
        self.batch = outputs.detach().clone(), targets.clone()
        self.found: Sequence[Tensor | None] = ()

        def body() -> None:
            self.found = judge(*self.batch)

        with torch.cuda.device(outputs.device):
            self.graph = capture(body, dict)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor | None]:
        for place, values in zip(self.batch, (outputs.detach(), targets), strict=True):
            place.copy_(values)
        self.graph.replay()
        return self.found


def described(values: Tensor) -> Hashable:
    return values.shape, values.stride(), values.dtype, values.device


def pays(outputs: Tensor) -> bool:
    """Whether judging these outputs is bound by kernel launches, and can be captured at all."""
    return outputs.is_cuda and outputs.numel() <= MOST_VALUES and not torch.cuda.is_current_stream_capturing()
