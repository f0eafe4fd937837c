"""A batch's judgement as one launch: on a GPU the many small steps of a selection cost more to launch than to run.

A kind of batch (its shapes and types, the rate) that has come a few times is captured as a CUDA graph; from then on
its outputs and targets are copied to where the graph reads. What it finds lies where the next batch of the kind will
leave its own: whoever keeps it longer copies it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradsieve.engine.captured import capture

Judge = Callable[[Tensor, Tensor], Sequence[Tensor | None]]

TIMES = 3  # that a kind of batch comes before it is captured: the last batch of an epoch may not come again soon
MOST_KINDS = 16  # with a rate that rises and batches of several sizes
MOST_VALUES = 2**22  # of the outputs: above it the steps take longer than their launches


class Replays:
    """The judgements that were captured, by kind."""

    def __init__(self) -> None:
        self.seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, Replay] = {}
        self.works = True

    def __reduce__(self) -> Any:  # a graph cannot be copied or saved; a copy captures its own
        return Replays, ()

    def count_anew(self) -> None:
        """Forget how often kinds came: at another rate they are others, and a rate may change with every step."""
        self.seen.clear()

    def judge(self, judge: Judge, outputs: Tensor, targets: Tensor, settings: Hashable) -> Sequence[Tensor | None]:
        """``judge(outputs, targets)``; ``settings`` stands for all else that it depends on."""
        kind = (settings, *map(described, (outputs, targets)))
        if kind not in self.graphs and not self.captured(kind, judge, outputs, targets):
            return judge(outputs, targets)
        return self.graphs[kind](outputs, targets)

    def captured(self, kind: Hashable, judge: Judge, outputs: Tensor, targets: Tensor) -> bool:
        """Whether the time has come, and it worked."""
        self.seen[kind] += 1
        if not self.works or self.seen[kind] < TIMES:
            return False
        if len(self.graphs) == MOST_KINDS:  # the oldest is of a rate that is over, most likely
            del self.graphs[next(iter(self.graphs))]
        try:
            self.graphs[kind] = Replay(judge, outputs, targets)
        except RuntimeError:  # something of the user's waits for the device: nothing is lost but speed
            self.works = False
        return self.works


class Replay:
    """A judgement of batches of one kind."""

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
    """Whether a judgement of these outputs is bound by its launches, and can be captured at all."""
    return outputs.is_cuda and outputs.numel() <= MOST_VALUES and not torch.cuda.is_current_stream_capturing()
