"""Live previews with boxes, drawn only for cameras that somebody looks at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import cv2

from ingest.crop import encode_jpeg
from ingest.frame import Frame
from ingest.privacy import obscure
from pipeline.clock import Clock
from pipeline.config import Blur
from pipeline.messages import Box

WATCH_S = 15.0
"""A watch command holds so long; who still looks renews it."""
MIN_INTERVAL_S = 0.15
MAX_WIDTH = 960
JPEG_QUALITY = 75
_GREEN = (80, 220, 60)
_BLACK = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Mark:
    """A box and the words above it."""

    box: Box
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Preview:
    """A frame to be drawn on; the drawing itself happens in the publisher's thread, away from the detector.

    ``hidden`` are the regions of the frame that are made unrecognisable.
    """

    frame: Frame
    marks: tuple[Mark, ...]
    hidden: tuple[Box, ...] = ()
    blur: Blur = "none"


class PreviewBoard:
    """Which cameras are watched, and the newest preview of each. Thread-safe.

    ``on_put`` is called after each new preview; it belongs to the one who takes them.
    """

    def __init__(self, clock: Clock) -> None:
        self.on_put: Callable[[], None] = lambda: None
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._waiting: dict[str, Preview] = {}

    def watch(self, camera: str) -> None:
        with self._lock:
            self._until[camera] = self._clock.monotonic() + WATCH_S

    def unwatch(self, camera: str) -> None:
        with self._lock:
            self._until.pop(camera, None)
            self._last.pop(camera, None)
            self._waiting.pop(camera, None)

    def watched(self, camera: str) -> bool:
        """Whether somebody looks at this camera."""
        with self._lock:
            return self._until.get(camera, 0.0) > self._clock.monotonic()

    def wants(self, camera: str) -> bool:
        """Whether a preview of this camera is worth making now."""
        now = self._clock.monotonic()
        with self._lock:
            watched = self._until.get(camera, 0.0) > now
            return watched and now - self._last.get(camera, -WATCH_S) >= MIN_INTERVAL_S

    def put(self, preview: Preview) -> None:
        camera = preview.frame.camera
        with self._lock:
            if camera in self._until:
                self._last[camera] = self._clock.monotonic()
                self._waiting[camera] = preview
        self.on_put()

    def take(self) -> list[Preview]:
        """The previews that wait, one a camera."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        return waiting


def draw(preview: Preview) -> bytes:
    """The frame with its marks as JPEG, at most ``MAX_WIDTH`` pixels wide."""
    scale = min(1.0, MAX_WIDTH / preview.frame.width)
    size = (round(preview.frame.width * scale), round(preview.frame.height * scale))
    image = preview.frame.image.copy() if scale == 1 or preview.hidden else preview.frame.image
    obscure(image, preview.hidden, preview.blur)
    image = image if scale == 1 else cv2.resize(image, size)
    for mark in preview.marks:
        x1, y1, x2, y2 = (round(v * scale) for v in mark.box)
        cv2.rectangle(image, (x1, y1), (x2, y2), _GREEN, 2)
        (wide, high), base = cv2.getTextSize(mark.text, cv2.FONT_HERSHEY_SIMPLEX, 0.5, 1)
        top = max(0, y1 - high - base - 2)
        cv2.rectangle(image, (x1, top), (x1 + wide + 6, top + high + base + 2), _GREEN, cv2.FILLED)
        cv2.putText(image, mark.text, (x1 + 3, top + high), cv2.FONT_HERSHEY_SIMPLEX, 0.5, _BLACK, 1, cv2.LINE_AA)
    return encode_jpeg(image, JPEG_QUALITY)
