"""One thread that takes the newest frame of each camera in turn and hands back who is on it."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from ingest.detection import Rows
from ingest.detector import PersonDetector
from ingest.frame import Frame, FrameSlot
from pipeline.clock import Clock
from pipeline.logs import ThrottledLogger

log = logging.getLogger(__name__)

TICK_S = 0.25
"""So often every camera is told the time, frames or not: a person is gone also when the camera is."""


class DetectionFeed(Protocol):
    """One camera, as the loop sees it. All methods are called from the loop's thread."""

    @property
    def camera(self) -> str: ...

    @property
    def slot(self) -> FrameSlot: ...

    def detected(self, frame: Frame, rows: Rows, seconds: float) -> None:
        """Who is on the frame; ``seconds`` is the frame's share of the forward."""
        ...

    def detector_failed(self, frame: Frame) -> None:
        """The frame is lost."""
        ...

    def tick(self, now: float) -> None:
        """Monotonic time goes on."""
        ...


class DetectorLoop:
    """Fair between the cameras: each round starts one camera further on.

    No waiting to fill a batch: while a forward runs, frames of other cameras come in by themselves, so a batch is as
    large as the load asks for, and a lone camera is never delayed.
    """

    def __init__(self, detector: PersonDetector, clock: Clock) -> None:
        self._detector = detector
        self._clock = clock
        self._lock = threading.Lock()
        self._feeds: dict[str, DetectionFeed] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._turn = 0
        self._errors = ThrottledLogger(log)
        self._thread = threading.Thread(target=self._run, name="detector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """True when the thread has ended: from then on no feed is called any more."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """A slot has a new frame."""
        self._wake.set()

    def add(self, feed: DetectionFeed) -> None:
        with self._lock:
            self._feeds[feed.camera] = feed

    def remove(self, camera: str) -> None:
        """Returns when the camera's feed is not being called and won't be called again."""
        with self._lock:
            self._feeds.pop(camera, None)

    def _run(self) -> None:
        next_tick = self._clock.monotonic()
        while not self._stopping.is_set():
            self._wake.wait(TICK_S)
            self._wake.clear()
            while not self._stopping.is_set() and self._round():
                next_tick = self._tick(next_tick)
            next_tick = self._tick(next_tick)

    def _round(self) -> bool:
        """One forward with the cameras whose turn it is; False when no frame waits."""
        batch = self._next_frames()
        if not batch:
            return False
        started = self._clock.monotonic()
        try:
            found = self._detector.detect([frame.image for _, frame in batch])
        except Exception as error:  # whatever the network's runtime raises costs these frames, not the loop
            self._errors.log(logging.ERROR, type(error).__name__, "detector: %s: %s", type(error).__name__, error)
            for feed, frame in batch:
                self._call(feed, "detector_failed", frame)
            return True
        seconds = (self._clock.monotonic() - started) / len(batch)
        for (feed, frame), rows in zip(batch, found, strict=True):
            self._call(feed, "detected", frame, rows, seconds)
        return True

    def _next_frames(self) -> list[tuple[DetectionFeed, Frame]]:
        with self._lock:
            feeds = list(self._feeds.values())
        if not feeds:
            return []
        self._turn = (self._turn + 1) % len(feeds)
        batch: list[tuple[DetectionFeed, Frame]] = []
        for offset in range(len(feeds)):
            feed = feeds[(self._turn + offset) % len(feeds)]
            frame = feed.slot.take()
            if frame is not None:
                batch.append((feed, frame))
                if len(batch) == self._detector.batch_size:
                    self._turn = (self._turn + offset) % len(feeds)
                    break
        return batch

    def _tick(self, due: float) -> float:
        now = self._clock.monotonic()
        if now < due:
            return due
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            self._call(feed, "tick", now)
        return now + TICK_S

    def _call(self, feed: DetectionFeed, method: str, *args: object) -> None:
        """Isolates the cameras from each other. The lock keeps a feed from being removed in the middle of a call."""
        with self._lock:
            if self._feeds.get(feed.camera) is not feed:
                return
            try:
                getattr(feed, method)(*args)
            except Exception:
                log.exception("camera %s: %s failed", feed.camera, method)
