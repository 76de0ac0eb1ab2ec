"""Decoding keyframes only while nothing happens."""

from __future__ import annotations


class IdleGate:
    """Says when a camera's decoder may rest between the keyframes, and when it must not.

    Whether something happens, others tell: the motion gate, the tracker, who looks at the picture.
    """

    def __init__(self, after_s: float, now: float) -> None:
        """``after_s`` 0: never idle. ``now`` is monotonic."""
        self._after_s = after_s
        self._active = now

    def keep_awake(self, now: float) -> None:
        """Something happens. May be called by any thread."""
        self._active = max(self._active, now)

    def idles(self, now: float) -> bool:
        """Whether to rest."""
        return self._after_s > 0 and now - self._active >= self._after_s
