"""A decoded frame, and the slot in which only the newest one waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

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
