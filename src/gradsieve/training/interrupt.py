"""Ctrl-C and SIGTERM, handled between two steps, where a state can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop; its folder, if it has one, holds a state to go on from."""


class StopRequest:
    """A signal handler that remembers whether a signal came; a second one interrupts at once."""

    made = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.made:
            raise KeyboardInterrupt
        self.made = True


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Note a first signal, for the loop to act on; a second one interrupts at once.

    Nested uses share the outermost request: a signal that comes between two inner loops stops the next one.
    """
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield StopRequest()
        return
    listening = signal.getsignal(signal.SIGINT)
    if isinstance(listening, StopRequest):
        yield listening
        return
    request = StopRequest()
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
