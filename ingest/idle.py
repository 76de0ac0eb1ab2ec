"""Decoding keyframes only while nothing moves."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.frame import Image

_SIZE = (64, 36)
_CELL_CHANGE = 12.0
"""Grey levels out of 255 by which a cell must change; sensor noise averages out over a cell."""
_CELLS = 2
"""A person far away covers two cells of 64 x 36."""


class IdleGate:
    """Says when a camera's decoder may rest between the keyframes, and when it must not.

    A keyframe that differs from the one before wakes it at once: what follows is decoded from that keyframe on, so
    nothing is lost but what happened since the one before.
    """

    def __init__(self, after_s: float, now: float, motion: bool = True) -> None:
        """``after_s`` 0: never idle. ``now`` is monotonic. Without ``motion`` only ``keep_awake`` does."""
        self._after_s = after_s
        self._active = now
        self._motion = motion
        self._cells: NDArray[np.float32] | None = None

    def keep_awake(self, now: float) -> None:
        """Somebody is in view, or looks at the picture."""
        self._active = max(self._active, now)

    def idles(self, image: Image, now: float) -> bool:
        """Takes the next picture and says whether to rest from now on."""
        if not self._after_s:
            return False
        if self._motion:
            small = cv2.resize(image, _SIZE, interpolation=cv2.INTER_AREA)
            cells = np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2GRAY), dtype=np.float32)
            if self._cells is not None and moved(self._cells, cells):
                self._active = now
            self._cells = cells
        return now - self._active >= self._after_s


def moved(before: NDArray[np.float32], after: NDArray[np.float32]) -> bool:
    """Whether something moved, and not just the light or the exposure of the whole picture changed."""
    change = after - before
    change -= float(np.median(change))
    return bool(np.count_nonzero(np.abs(change) > _CELL_CHANGE) >= _CELLS)
