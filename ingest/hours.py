"""Whether a camera is to be watched now, and when that changes."""

from __future__ import annotations

from pipeline.clock import Clock
from pipeline.config import CameraConfig


class Hours:
    """A camera's switch and schedule against the clock. Looking ahead takes up to 0.1 s: it is done once a change."""

    def __init__(self, camera: CameraConfig, clock: Clock) -> None:
        self._enabled = camera.enabled
        self._schedule = camera.schedule
        self._clock = clock
        self._looked = float("inf")
        self._next: float | None = None

    def are_open(self) -> bool:
        """Whether the camera is to be watched."""
        return self._enabled and (self._schedule is None or self._schedule.is_open(self._clock.now()))

    def next_change(self) -> float | None:
        """When the schedule opens or closes next, in seconds since the epoch; None: never, or there is none."""
        if self._schedule is None:
            return None
        now = self._clock.now()
        # Also when the clock was put back: what was looked up then may lie too far ahead.
        if now < self._looked or (self._next is not None and now >= self._next):
            self._looked, self._next = now, self._schedule.next_change(now)
        return self._next
