"""A decoded frame, and the slot in which only the newest one waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ingest.counts import DropCounts
from pipeline.reasons import Reason

Image = NDArray[np.uint8]
"""Height x width x 3, BGR; nobody writes into it after it was put into a frame."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture of a camera.

    Attributes:
        number: counts up per camera and process.
        time: when it arrived, seconds since the epoch. The camera's own clock is not used: it jumps.
        monotonic: the same moment on the clock that never goes back; intervals are measured on this one.
        connection: number of the connection it came over.
    """

    camera: str
    number: int
    image: Image
    time: float
    monotonic: float
    connection: int

    @property
    def width(self) -> int:
        return int(self.image.shape[1])

    @property
    def height(self) -> int:
        return int(self.image.shape[0])


class FrameSink(Protocol):
    """Where a reader puts its frames."""

    def put(self, frame: Frame) -> None: ...

    def clear(self) -> None:
        """The reader ends: what waits is not wanted any more."""
        ...


class FrameSlot:
    """Room for one frame between a camera's reader and the detector: a slow detector never makes a camera lag."""

    def __init__(self, drops: DropCounts, on_put: Callable[[], None]) -> None:
        self._drops = drops
        self._on_put = on_put
        self._lock = threading.Lock()
        self._frame: Frame | None = None

    def put(self, frame: Frame) -> None:
        """A frame that was still waiting is dropped and counted."""
        with self._lock:
            replaced, self._frame = self._frame is not None, frame
        if replaced:
            self._drops.add(Reason.FRAME_STALE)
        self._on_put()

    def take(self) -> Frame | None:
        with self._lock:
            frame, self._frame = self._frame, None
        return frame

    def clear(self) -> None:
        """Drops a waiting frame, counted."""
        if self.take() is not None:
            self._drops.add(Reason.FRAME_STALE)


class RecentFrames:
    """The last few frames of a camera's main stream, to cut out of them what was found on its sub-stream. Thread-safe.

    A frame of 3840x2160 takes 25 MB, so there are only as many as the streams may be apart.
    """

    def __init__(self, keep: int) -> None:
        self._lock = threading.Lock()
        self._frames: deque[Frame] = deque(maxlen=keep)

    def put(self, frame: Frame) -> None:
        with self._lock:
            self._frames.append(frame)

    def clear(self) -> None:
        with self._lock:
            self._frames.clear()

    def nearest(self, monotonic: float, within_s: float) -> Frame | None:
        """The frame that arrived nearest to that moment, None when none did within ``within_s`` seconds of it."""
        with self._lock:
            frames = list(self._frames)
        nearest = min(frames, key=lambda frame: abs(frame.monotonic - monotonic), default=None)
        return nearest if nearest is not None and abs(nearest.monotonic - monotonic) <= within_s else None
