"""Is it still the world, or the same picture again and again?"""

from __future__ import annotations

import numpy as np

from ingest.frame import Image

_SAMPLED_ROWS = 32


class FrozenPicture:
    """Watches for a stream that goes on while its picture stands still: a hung sensor, a proxy without its camera.

    A still scene repeats itself between two keyframes too (an encoder skips what does not change), but a keyframe
    carries the sensor's noise anew. So a picture counts as frozen only when every frame, across at least ``keyframes``
    further keyframes and for at least ``after_s`` seconds, is the same to the bit (source: cases R28).
    """

    def __init__(self, after_s: float, keyframes: int) -> None:
        """``after_s`` 0 switches it off."""
        self._after_s = after_s
        self._keyframes = keyframes
        self._picture: Image | None = None
        self._since = 0.0
        self._keyframes_seen = 0

    def sees(self, image: Image, keyframe: bool, now: float) -> bool:
        """Takes the next picture (monotonic time ``now``) and says whether the stream is frozen with it."""
        if not self._after_s:
            return False
        if self._picture is None or not same(self._picture, image):
            self._picture = image
            self._since = now
            self._keyframes_seen = 0
            return False
        self._keyframes_seen += keyframe
        return self._keyframes_seen >= self._keyframes and now - self._since >= self._after_s


def same(a: Image, b: Image) -> bool:
    """To the bit; most pictures differ in the few rows that are looked at first."""
    if a.shape != b.shape:
        return False
    step = max(1, a.shape[0] // _SAMPLED_ROWS)
    return bool(np.array_equal(a[::step], b[::step]) and np.array_equal(a, b))
