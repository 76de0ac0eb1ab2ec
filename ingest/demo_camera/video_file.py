"""Any video file as the demo camera's picture, from its start again when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
from av.video.frame import VideoFrame

from ingest.demo_camera.clip import ClipError, Picture


class VideoFileSource:
    """Plays a file at its own speed; sides are rounded down to even numbers.

    Raises :class:`~ingest.demo_camera.clip.ClipError` when the file is missing, holds no video or no picture.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise ClipError(f"{self._path} is not a file")
        self._frames = self._endless()
        try:
            self._shown = next(self._frames)
        except StopIteration:
            raise ClipError(f"{self._path} holds no picture that can be decoded") from None
        self._next: tuple[float, VideoFrame] | None = None
        self.width = self._shown[1].width // 2 * 2
        self.height = self._shown[1].height // 2 * 2

    def picture(self, seconds: float) -> Picture:
        while True:
            if self._next is None:
                self._next = next(self._frames)
            if self._next[0] > seconds:
                break
            self._shown, self._next = self._next, None
        frame = self._shown[1].reformat(width=self.width, height=self.height, format="bgr24")
        return np.asarray(frame.to_ndarray(), dtype=np.uint8)

    def _endless(self) -> Iterator[tuple[float, VideoFrame]]:
        """Frames with their time since the very first one, the file over and over; ends only if it has no frame."""
        started = 0.0
        while True:
            length = 0.0
            for offset, step, frame in self._once():
                yield started + offset, frame
                length = offset + step
            if not length:
                return
            started += length

    def _once(self) -> Iterator[tuple[float, float, VideoFrame]]:
        """Seconds since the file's first frame, seconds that a frame is shown, frame."""
        try:
            with av.open(str(self._path)) as container:
                if not container.streams.video:
                    raise ClipError(f"{self._path} holds no video")
                stream = container.streams.video[0]
                step = 1 / float(stream.average_rate or 10)
                offset = -step
                first: float | None = None
                for frame in container.decode(stream):
                    if frame.time is None:  # a file without times plays at its nominal rate
                        offset += step
                    else:
                        first = frame.time if first is None else first
                        offset = max(offset + step / 10, frame.time - first)
                    yield offset, step, frame
        except av.error.FFmpegError as error:
            raise ClipError(f"{self._path} can't be read as a video: {type(error).__name__}") from None
