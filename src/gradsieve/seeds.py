"""Independent random streams from one seed, each with a name.

A run draws its weights, its corruption, its row order and its dropout from streams of
their own, so that changing one (another method, a longer run) leaves the others as they were.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *path: str | int) -> int:
    """The seed of the stream that ``path`` names, such as ``derive(0, "order", epoch)``."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1  # torch takes 63 bits


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator at the start of the stream that ``path`` names."""
    return torch.Generator().manual_seed(derive(seed, *path))
