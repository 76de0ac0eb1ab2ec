"""When frames come: deadlines, the backlog after a connect, thinning out to the wanted rate. All by our own clock."""

from __future__ import annotations

from collections import deque
from statistics import median

from ingest.stream_errors import Failure, StreamError
from pipeline.config import CameraConfig
from pipeline.messages import CameraState
from pipeline.reasons import Reason

MAX_DRAIN_S = 3.0
"""A backlog is behind us after so long at the latest; cameras that send in bursts never leave a gap."""
MIN_PAUSE_S = 2.0
PERIODS_MISSING = 4
"""So many frames in a row that don't come are a pause of the network, not a slow camera."""
_REMEMBERED = 9


class Arrivals:
    """One connection's timing. All times are monotonic seconds; the camera's own clock is never looked at."""

    def __init__(self, config: CameraConfig, live: bool, nominal_fps: float, now: float) -> None:
        self.opened = now
        self._config = config
        self._live = live
        self._wanted_period = 1.0 / config.fps
        self._nominal_period = 1.0 / nominal_fps
        self._waits: deque[float] = deque(maxlen=_REMEMBERED)
        self._draining_since = now if live else None
        self._last_arrival = now
        self._any_used = False
        self._due = now

    @property
    def _period(self) -> float:
        """Seconds from frame to frame: as the stream says, or as it turns out when that is longer."""
        return max(self._nominal_period, median(self._waits) if self._waits else 0.0)

    def is_backlog(self, waited: float, now: float) -> bool:
        """True while old frames arrive in a burst: after connecting (measured: 28 frames, 3 s old, came within 50 ms)
        and after a pause of the network. A frame that the reader had to wait for is a new one."""
        if not self._live:
            return False
        if self._draining_since is None:
            if waited > max(MIN_PAUSE_S, PERIODS_MISSING * self._period):
                self._draining_since = now
        elif waited >= 0.5 * self._nominal_period or now - self._draining_since > MAX_DRAIN_S:
            self._draining_since = None
        self._waits.append(waited)
        return self._draining_since is not None

    def arrived(self, now: float) -> None:
        """Something came from the camera."""
        self._last_arrival = now

    def used(self) -> None:
        """A frame was good."""
        self._any_used = True

    def is_due(self, now: float) -> bool:
        """Thins the stream out to the wanted rate by arrival; a tenth of a period early counts as in time."""
        if now < self._due - 0.1 * self._wanted_period:
            return False
        self._due = max(self._due + self._wanted_period, now + 0.5 * self._wanted_period)
        return True

    def check_deadlines(self, now: float) -> None:
        """Raises StreamError when the first usable frame, or the next frame, is overdue.

        A camera with less than a frame a second has time for three of them.
        """
        if not self._any_used and now - self.opened > self._config.first_frame_timeout_s:
            raise StreamError(Failure(CameraState.STALLED, Reason.FIRST_FRAME_TIMEOUT))
        patience = max(self._config.stall_timeout_s, 3 * self._nominal_period)
        if self._any_used and now - self._last_arrival > patience:
            raise StreamError(Failure(CameraState.STALLED, Reason.NO_FRAMES))
