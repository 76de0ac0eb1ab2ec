"""A camera on this machine, through OpenCV: libav's own reader of such devices can't be interrupted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

import cv2
import numpy as np
from av.video.frame import VideoFrame

from ingest.source import DecodedPicture, device_of
from ingest.stream_errors import Failure, StreamError
from pipeline.config import CameraConfig
from pipeline.messages import CameraState
from pipeline.reasons import Reason

Capture = Callable[[int], cv2.VideoCapture]
_DEFAULT_FPS = 30.0
_MAX_FAILURES = 3


def open_device(number: int) -> cv2.VideoCapture:
    """Video4Linux where there is one, else the system's own way. Reads give up after OpenCV's ten seconds."""
    return cv2.VideoCapture(number, cv2.CAP_V4L2 if os.name == "posix" else cv2.CAP_ANY)


class WebcamStream:
    """Pictures of a local video device (``webcam:0``, ``/dev/video0``); every one is whole, so none is tainted."""

    live = True
    codec = "raw"
    decoder = "cpu"

    def __init__(self, config: CameraConfig, stop: Event, open_capture: Capture = open_device) -> None:
        number = device_of(config.url)
        if number is None:
            raise ValueError(f"camera {config.id}: {config.url!r} names no video device")
        self._number = number
        self._stop = stop
        self._open_capture = open_capture
        self._capture: cv2.VideoCapture | None = None
        self.keyframes_only = False
        self.last_packet = time.monotonic()

    @property
    def fps(self) -> float:
        rate = self._capture.get(cv2.CAP_PROP_FPS) if self._capture is not None else 0.0
        return rate if 0 < rate <= 240 else _DEFAULT_FPS

    def __enter__(self) -> Self:
        """Raises StreamError."""
        capture = self._open_capture(self._number)
        if not capture.isOpened():
            capture.release()
            raise StreamError(_why_not(self._number))
        self._capture = capture
        self.last_packet = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    def pictures(self) -> Generator[DecodedPicture | None, None, None]:
        """Ends when a stop is requested. Raises StreamError when the device is unplugged or gives nothing."""
        if self._capture is None:
            raise RuntimeError("the webcam is not open")
        failures = 0
        while not self._stop.is_set():
            asked = time.monotonic()
            good, image = self._capture.read()
            now = time.monotonic()
            if good and image is not None:
                failures = 0
                self.last_packet = now
                frame = VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24")
                yield DecodedPicture(frame, True, now - asked, True)
                continue
            failures += 1
            if failures >= _MAX_FAILURES:
                raise StreamError(Failure(CameraState.STALLED, Reason.STREAM_ENDED, "the device gives no picture"))
            yield None


def _why_not(number: int) -> Failure:
    path = Path(f"/dev/video{number}")
    if not path.exists():
        return Failure(CameraState.UNREACHABLE, Reason.NOT_FOUND, f"there is no {path}")
    if not os.access(path, os.R_OK | os.W_OK):
        return Failure(CameraState.UNSUPPORTED, Reason.BAD_SOURCE, f"{path} may not be opened by this user")
    return Failure(CameraState.UNREACHABLE, Reason.REFUSED, f"{path} is in use or no camera")
