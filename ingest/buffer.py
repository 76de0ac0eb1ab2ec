"""What waits for Redis: bounded, in order, the newest crops first to be kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from ingest.counts import DropLedger
from pipeline.messages import CropKind, CropMessage, TrackMessage, TrackPhase
from pipeline.reasons import Reason

MAX_TRACKS = 10_000
"""Track messages, some 300 bytes each. Beyond it updates go first, then the oldest."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingCrop:
    """A crop with its JPEG and those of its ``extra_keys``."""

    message: CropMessage
    jpeg: bytes
    extras: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all pictures."""
        return len(self.jpeg) + sum(map(len, self.extras))


MAX_BYTES = 64 * 1024 * 1024
"""Of all pictures that wait, whatever their number."""

Waiting = TrackMessage | WaitingCrop


class MessageBuffer:
    """Thread-safe. One thread takes; what it takes is its own, unless it gives it back.

    A crop goes before the end of its track, so that an end which promises a final crop is never the first to arrive.
    When that crop had to be dropped, the promise is taken out of the end.
    """

    def __init__(self, max_crops: int, drops: DropLedger, now: Callable[[], float]) -> None:
        """``now``: seconds since the epoch, for the crops' deadlines."""
        self._max_crops = max_crops
        self._drops = drops
        self._now = now
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._crops = 0
        self._bytes = 0
        self._tried: set[str] = set()  # picture keys of waiting crops
        self._finals_lost: dict[str, None] = {}  # a set in the order of arrival

    def put_track(self, message: TrackMessage) -> None:
        with self._lock:
            self._waiting.append(message)
            if len(self._waiting) - self._crops > MAX_TRACKS:
                self._drop_track()

    def put_crop(self, crop: WaitingCrop) -> None:
        """Takes the place of a waiting crop of the same track, or of the oldest one over the bound."""
        with self._lock:
            for other in self._waiting:
                if isinstance(other, WaitingCrop) and other.message.track == crop.message.track:
                    self._drop_crop(other, Reason.SUPERSEDED)
                    break
            self._waiting.append(crop)
            self._crops += 1
            self._bytes += crop.size
            self._enforce_bound()

    def take(self) -> Waiting | None:
        """The oldest that is still worth something."""
        with self._lock:
            while self._waiting:
                item = self._waiting[0]
                if isinstance(item, WaitingCrop):
                    if item.message.deadline <= self._now():
                        self._drop_crop(item, Reason.DEADLINE)
                        continue
                    self._crops -= 1
                    self._bytes -= item.size
                    self._tried.discard(item.message.picture_key)
                self._waiting.popleft()
                return self._truthful(item)
            return None

    def give_back(self, item: Waiting) -> None:
        """What could not be written is the oldest again. A crop may have been, if only the reply got lost: dropping it
        from now on is in doubt."""
        with self._lock:
            self._waiting.appendleft(item)
            if isinstance(item, WaitingCrop):
                self._tried.add(item.message.picture_key)
                self._crops += 1
                self._bytes += item.size
                self._enforce_bound()

    def sizes(self) -> tuple[int, int]:
        """Crops and track messages that wait."""
        with self._lock:
            return self._crops, len(self._waiting) - self._crops

    def _truthful(self, item: Waiting) -> Waiting:
        if isinstance(item, TrackMessage) and item.phase is TrackPhase.END and item.track in self._finals_lost:
            self._finals_lost.pop(item.track)
            return replace(item, final_crop=False)
        return item

    def _enforce_bound(self) -> None:
        while self._crops > self._max_crops or (self._bytes > MAX_BYTES and self._crops > 1):
            oldest = next(item for item in self._waiting if isinstance(item, WaitingCrop))
            self._drop_crop(oldest, Reason.BUFFER_FULL)

    def _drop_crop(self, crop: WaitingCrop, reason: Reason) -> None:
        self._waiting.remove(crop)
        self._crops -= 1
        self._bytes -= crop.size
        if crop.message.kind is CropKind.FINAL:
            self._finals_lost[crop.message.track] = None
            if len(self._finals_lost) > MAX_TRACKS:
                # Their ends were dropped before them.
                self._finals_lost.pop(next(iter(self._finals_lost)))
        counts, key = self._drops.of(crop.message.camera), crop.message.picture_key
        if key in self._tried:
            self._tried.remove(key)
            counts.add_in_doubt(reason, key)
        else:
            counts.add(reason)

    def _drop_track(self) -> None:
        tracks = [item for item in self._waiting if isinstance(item, TrackMessage)]
        victim = next((item for item in tracks if item.phase is TrackPhase.UPDATE), tracks[0])
        self._waiting.remove(victim)
        self._finals_lost.pop(victim.track, None)
        self._drops.of(victim.camera).add(Reason.BUFFER_FULL)
