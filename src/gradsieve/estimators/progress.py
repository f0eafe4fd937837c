"""Progress of a fit: a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, Any

EVERY = 5.0  # seconds between lines


def lines(label: str, epochs: int, file: IO[str] | None = None) -> Callable[[dict[str, Any]], None]:
    """A function that is given each epoch's record and prints some of them, always the last."""
    last = -float("inf")

    def tell(record: dict[str, Any]) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY or record["epoch"] == epochs:
            last = time.monotonic()
            print(f"{label}  {describe(record, epochs)}", file=file, flush=True)

    return tell


def describe(record: dict[str, Any], epochs: int) -> str:
    """An epoch in one line."""
    validation = f"  validation {record['validation']:.4f}" if "validation" in record else ""
    loss, rate = f"loss {record['loss']:.4f}", f"dropping {record['drop_rate']:.3g}"
    return f"epoch {record['epoch']}/{epochs}  {loss}{validation}  {rate}  {record['seconds']:.1f} s"
