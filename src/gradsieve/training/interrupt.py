"""Ctrl-C and SIGTERM, answered between two steps, where a state can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop; its folder, if it has one, holds a state to go on from."""


class StopRequest:
    """Whether somebody asked to stop."""

    made = False


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Notice a first signal, for the loop to act on; a second one interrupts at once."""
    request = StopRequest()

    def notice(number: int, frame: FrameType | None) -> None:
        if request.made:
            raise KeyboardInterrupt
        request.made = True

    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield request
        return
    before = {number: signal.signal(number, notice) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
