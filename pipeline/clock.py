"""Time as an object, so that tests decide what time it is."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two clocks: ``now`` for what is stored, ``monotonic`` for intervals."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def iso(seconds: float) -> str:
    """``1764435336.5`` -> ``2025-11-29T16:55:36.500+00:00``: ISO 8601 with offset, for the edge of the system."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
