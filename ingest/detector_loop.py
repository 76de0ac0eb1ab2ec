"""One thread that takes the newest frame of each camera in turn, leaves out the still ones, and hands back who is on
the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Protocol

from ingest.detection import Rows
from ingest.detector import DetectorGroup, Detectors
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

    @property
    def group(self) -> DetectorGroup:
        """Frames of one group share forwards."""
        ...

    def wants(self, frame: Frame) -> bool:
        """Whether the detector should look at the frame. Must be cheap: it is asked for each one."""
        ...

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
    """Fair between the cameras: whose turn was longest ago comes first, and brings others of its group along.

    No waiting to fill a batch: while a forward runs, frames of other cameras come in by themselves, so a batch is as
    large as the load asks for, and a lone camera is never delayed.
    """

    def __init__(self, detectors: Detectors, clock: Clock) -> None:
        self._detectors = detectors
        self._clock = clock
        self._lock = threading.Lock()
        self._feeds: dict[str, DetectionFeed] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
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
            found = self._detectors.detect(batch[0][0].group, [frame.image for _, frame in batch])
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
        """The next batch: of one group, the cameras that waited longest for their turn first."""
        with self._lock:
            feeds = list(self._feeds.values())
        batch: list[tuple[DetectionFeed, Frame]] = []
        for feed in feeds:
            if batch and feed.group != batch[0][0].group:
                continue
            frame = feed.slot.take()
            # One that can't say whether it wants the frame gets it looked at.
            if frame is None or self._call(feed, "wants", frame) is False:
                continue
            batch.append((feed, frame))
            if len(batch) == self._detectors.batch_size(feed.group):
                break
        self._had_their_turn(feed for feed, _ in batch)
        return batch

    def _had_their_turn(self, feeds: Iterable[DetectionFeed]) -> None:
        """They come last from now on."""
        with self._lock:
            for feed in feeds:
                if self._feeds.get(feed.camera) is feed:
                    self._feeds[feed.camera] = self._feeds.pop(feed.camera)

    def _tick(self, due: float) -> float:
        now = self._clock.monotonic()
        if now < due:
            return due
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            self._call(feed, "tick", now)
        return now + TICK_S

    def _call(self, feed: DetectionFeed, method: str, *args: object) -> object:
        """What the method gives, None when it fails: the cameras are isolated from each other.

        The lock keeps a feed from being removed in the middle of a call.
        """
        with self._lock:
            if self._feeds.get(feed.camera) is not feed:
                return None
            try:
                return getattr(feed, method)(*args)
            except Exception:
                log.exception("camera %s: %s failed", feed.camera, method)
                return None
