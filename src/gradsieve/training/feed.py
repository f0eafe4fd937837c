"""Batches in a given order: from device memory if the data fits there, else streamed from the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve import seeds
from gradsieve.data.dataset import Rows
from gradsieve.ranks import own_part
from gradsieve.training.run import Augment

BORDER = 4  # pixels by which a crop may be shifted to each side


class Batch(NamedTuple):
    """Some rows of the training set."""

    rows: Tensor  # (B,) their indices in the training set
    inputs: Tensor  # (B, ...) float32
    targets: Tensor


def epoch_order(seed: int, epoch: int, rows: Tensor) -> Tensor:
    """The order in which an epoch visits ``rows``: a function of seed and epoch alone."""
    return rows[torch.randperm(len(rows), generator=seeds.generator(seed, "order", epoch)).to(rows.device)]


def fits(data: Rows, device: torch.device) -> bool:
    """Whether the data takes at most half of the device's free memory, so that enough is left for training."""
    if device.type != "cuda":
        return True
    size = data.inputs.nbytes + data.targets.nbytes
    return size <= torch.cuda.mem_get_info(device)[0] / 2


def as_float(inputs: Tensor, channels_last: bool = False) -> Tensor:
    """Inputs as a network takes them: float32, bytes scaled to [0, 1]."""
    inputs = inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs.float()
    return inputs.contiguous(memory_format=torch.channels_last) if channels_last and inputs.dim() == 4 else inputs


def crop_and_flip(images: Tensor) -> Tensor:  # (B, C, H, W)
    """Each image shifted by up to ``BORDER`` pixels, zeros filled in, and mirrored with probability 1/2."""
    (rows, _, height, width), device = images.shape, images.device
    top, left = (torch.randint(2 * BORDER + 1, (rows, 1), device=device) for _ in range(2))
    lines, columns = (torch.arange(side, device=device) for side in (height, width))
    mirrored = torch.where(torch.rand(rows, 1, device=device) < 0.5, columns.flip(0), columns)
    row = torch.arange(rows, device=device).view(-1, 1, 1)
    moved = F.pad(images, [BORDER] * 4)[row, :, (top + lines).unsqueeze(2), (left + mirrored).unsqueeze(1)]
    return moved.movedim(-1, 1)


def as_batch(rows: Tensor, inputs: Tensor, targets: Tensor, augment: Augment) -> Batch:
    """Rows as a step takes them. Images stay bytes until here: a quarter of the memory traffic of float32."""
    inputs = crop_and_flip(inputs) if augment == "crop-flip" else inputs
    return Batch(rows, as_float(inputs, channels_last=inputs.is_cuda), targets)


def draw(order: Tensor, place: Tensor, inputs: Tensor, targets: Tensor, size: int, augment: Augment) -> Batch:
    """The next ``size`` rows of ``order``, from ``place`` on, which is advanced."""
    rows = order[place + torch.arange(size, device=order.device)]
    place += size
    return as_batch(rows, inputs[rows], targets[rows], augment)


class Feed:
    """Training rows, ready to be drawn in any order."""

    def __init__(
        self, data: Rows, device: torch.device, resident: bool | None = None, augment: Augment = "none"
    ) -> None:
        self.device = device
        self.augment: Augment = augment
        self.waited = 0.0  # seconds spent waiting for rows that the host had not gathered yet
        self.resident = fits(data, device) if resident is None else resident
        place = device if self.resident else torch.device("cpu")
        self.inputs, self.targets = data.inputs.to(place), data.targets.to(place)

    def __len__(self) -> int:
        return len(self.targets)

    def batches(self, order: Tensor, batch_size: int, first: int = 0) -> Iterator[Batch]:
        """This rank's part of each batch of ``order``, from batch number ``first`` on.

        A partial last batch is left out, to keep shapes static.
        """
        batch_size = min(batch_size, len(order))
        order = order if self.resident else order.cpu()  # here, once: in each step it would wait for the device
        own = own_part(batch_size)  # where several ranks share each batch
        chunks = [order[i * batch_size :][own] for i in range(first, len(order) // batch_size)]
        if self.resident:
            for rows in chunks:
                yield as_batch(rows, self.inputs[rows], self.targets[rows], self.augment)
        else:
            yield from self.streamed(chunks)

    def streamed(self, chunks: list[Tensor]) -> Iterator[Batch]:
        """Batches of which the next is gathered on the host while the device works on this one."""
        with ThreadPoolExecutor(1) as gatherer:
            waiting = [gatherer.submit(self.gather, rows) for rows in chunks[:2]]
            for number, rows in enumerate(chunks):
                asked_at = time.monotonic()
                inputs, targets = waiting.pop(0).result()
                self.waited += time.monotonic() - asked_at
                if number + 2 < len(chunks):
                    waiting.append(gatherer.submit(self.gather, chunks[number + 2]))
                rows, inputs, targets = (each.to(self.device, non_blocking=True) for each in (rows, inputs, targets))
                yield as_batch(rows, inputs, targets, self.augment)

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows copied out of the data in host memory; for a GPU, into pinned memory."""
        inputs, targets = self.inputs[rows], self.targets[rows]
        return (inputs.pin_memory(), targets.pin_memory()) if self.device.type == "cuda" else (inputs, targets)
