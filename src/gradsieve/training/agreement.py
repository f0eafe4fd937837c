"""When to save and when to stop, agreed over all ranks: each has its own clock and gets its own signals."""

from __future__ import annotations

import time

from gradsieve import ranks

EVERY = 0.5  # seconds between two agreements: one in every step would cost too much communication
MOST_STEPS = 1000  # between two agreements, however fast the steps are


class Agreement:
    """Whether any rank wants to stop, and whether the first rank wants to save."""

    def __init__(self, save_every: float) -> None:
        self.every = min(EVERY, save_every)
        self.asked_at = time.monotonic()
        self.steps = self.left = 1

    def __call__(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """What all ranks do after a step: (stop, save). Between two agreements they do neither."""
        if ranks.world_size() == 1:
            return stop, save
        self.left -= 1
        if self.left:
            return False, False
        pace = (time.monotonic() - self.asked_at) / self.steps
        steps = min(MOST_STEPS, max(1, int(self.every / pace))) if self.every else 1
        first = ranks.is_first()
        anyone_stops, saves, self.steps = ranks.largest([stop, save and first, steps if first else 0])
        self.left, self.asked_at = self.steps, time.monotonic()
        return bool(anyone_stops), bool(saves)
