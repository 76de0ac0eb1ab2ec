"""How often something happened lately."""

from __future__ import annotations

import threading
from collections import deque

WINDOW_S = 5.0
_KEPT = 512
"""More than 60 a second for the whole window."""


class Rate:
    """Occurrences a second over the last seconds. Thread-safe; times are monotonic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: deque[float] = deque(maxlen=_KEPT)

    def count(self, now: float) -> None:
        """It happened once more."""
        with self._lock:
            self._times.append(now)

    def per_second(self, now: float) -> float:
        """Over :data:`WINDOW_S` up to ``now``; 0 for fewer than two occurrences."""
        with self._lock:
            recent = [at for at in self._times if at > now - WINDOW_S]
        span = recent[-1] - recent[0] if len(recent) > 1 else 0.0
        return (len(recent) - 1) / span if span > 0 else 0.0
