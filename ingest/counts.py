"""Drops of one camera, counted by reason by every part that drops something."""

from __future__ import annotations

import threading
from collections import Counter

from pipeline.reasons import Reason

MAX_DOUBTS = 1000
"""Beyond it, a crop in doubt is counted as dropped."""


class DropCounts:
    """Thread-safe. ``totals`` is for the status, ``take_new`` for the sums that outlive the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[Reason] = Counter()
        self._new: Counter[Reason] = Counter()
        self._doubts: list[tuple[Reason, str]] = []

    def add(self, reason: Reason, n: int = 1) -> None:
        if n <= 0:
            return
        with self._lock:
            self._totals[reason] += n
            self._new[reason] += n

    def add_in_doubt(self, reason: Reason, picture_key: str) -> None:
        """A crop that may have reached Redis all the same: only Redis can tell whether it is to be counted."""
        with self._lock:
            self._totals[reason] += 1
            if len(self._doubts) < MAX_DOUBTS:
                self._doubts.append((reason, picture_key))
            else:
                self._new[reason] += 1

    def take_doubts(self) -> list[tuple[Reason, str]]:
        """Reason and picture key of those that were added in doubt since the last call."""
        with self._lock:
            doubts, self._doubts = self._doubts, []
        return doubts

    def totals(self) -> dict[str, int]:
        """Since the process started."""
        with self._lock:
            return {reason.value: n for reason, n in self._totals.items()}

    def take_new(self) -> dict[Reason, int]:
        """What was added since the last call."""
        with self._lock:
            new, self._new = dict(self._new), Counter()
        return new


class DropLedger:
    """The drop counts of all cameras. Thread-safe, and calls nobody while it holds its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cameras: dict[str, DropCounts] = {}

    def of(self, camera: str) -> DropCounts:
        """The same object for as long as the camera isn't forgotten."""
        with self._lock:
            return self._cameras.setdefault(camera, DropCounts())

    def all(self) -> dict[str, DropCounts]:
        with self._lock:
            return dict(self._cameras)

    def forget(self, camera: str) -> None:
        with self._lock:
            self._cameras.pop(camera, None)
