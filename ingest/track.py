"""A person followed from frame to frame, as the tracker tells it."""

from __future__ import annotations

import string
import threading
from collections import Counter
from dataclasses import dataclass

from ingest.detection import Detection
from pipeline.messages import Box
from pipeline.reasons import Reason

_DIGITS = string.digits + string.ascii_lowercase


@dataclass(frozen=True, slots=True)
class Track:
    """A track at one moment. Times are seconds since the epoch, but ``started`` (the first one) and ``moved`` (when it
    last left its place) are on the monotonic clock."""

    name: str
    label: str
    first_seen: float
    last_seen: float
    started: float
    box: Box
    score: float
    hits: int
    moved: float


@dataclass(frozen=True, slots=True)
class TrackChanges:
    """What one frame, or the passing of time, changed.

    Attributes:
        started: tracks that were confirmed now (they are in ``seen`` as well).
        seen: confirmed tracks that are on the frame, each with its detection.
        ended: tracks that are over, each with the reason.
    """

    started: tuple[Track, ...] = ()
    seen: tuple[tuple[Track, Detection], ...] = ()
    ended: tuple[tuple[Track, Reason], ...] = ()


class TrackNames:
    """Names like ``front/mikp2x1c-12``: the camera, when this process started, and a number that counts up per camera.

    They are unique over restarts, over a camera's removal and return, and between cameras. Thread-safe.
    """

    def __init__(self, started: float) -> None:
        """``started``: seconds since the epoch; two starts within the same millisecond would share names."""
        self._run = base36(int(started * 1000))
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()

    def next(self, camera: str) -> str:
        with self._lock:
            self._numbers[camera] += 1
            return f"{camera}/{self._run}-{self._numbers[camera]}"


def base36(number: int) -> str:
    """Digits and lower-case letters."""
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
    return digits or "0"
