"""Where pictures come from: told by the URL."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

from av.video.frame import VideoFrame


class SourceKind(StrEnum):
    """FILE is the only one that waits for its reader; all others are live."""

    RTSP = "rtsp"
    HTTP = "http"
    WEBCAM = "webcam"
    FILE = "file"


_DEVICE = re.compile(r"(?:webcam:|/dev/video)(\d{1,3})")


def kind_of(url: str) -> SourceKind:
    """What a camera's URL names."""
    if _DEVICE.fullmatch(url):
        return SourceKind.WEBCAM
    scheme = urlsplit(url).scheme.lower() if "://" in url else "file"
    if scheme in ("rtsp", "rtsps"):
        return SourceKind.RTSP
    return SourceKind.HTTP if scheme in ("http", "https") else SourceKind.FILE


def file_of(url: str) -> Path | None:
    """The path when the source is a file, else None."""
    if kind_of(url) is not SourceKind.FILE:
        return None
    return Path(unquote(urlsplit(url).path)) if "://" in url else Path(url)


def device_of(url: str) -> int | None:
    """The number of the video device when the source is a webcam (``webcam:0``, ``/dev/video0``), else None."""
    match = _DEVICE.fullmatch(url)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True, eq=False)
class DecodedPicture:
    """A frame as the decoder gave it.

    Attributes:
        usable: False from damage to the next keyframe.
        waited: seconds that the reader waited for its packet; near zero means that it came from a backlog.
        keyframe: whether it was decoded from itself alone.
    """

    frame: VideoFrame
    usable: bool
    waited: float
    keyframe: bool


class FrameSource(Protocol):
    """One connection, opened, read and closed by one thread. Entering raises StreamError."""

    @property
    def live(self) -> bool:
        """Whether it is a camera, not a file."""
        ...

    @property
    def fps(self) -> float:
        """Frames a second as the source says; 25 when it says nothing credible."""
        ...

    @property
    def codec(self) -> str: ...

    @property
    def decoder(self) -> str:
        """``cpu`` or the name of a device."""
        ...

    @property
    def keyframes_only(self) -> bool: ...

    @keyframes_only.setter
    def keyframes_only(self, wanted: bool) -> None: ...

    @property
    def last_packet(self) -> float:
        """When something came from the camera last; monotonic."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...

    def pictures(self) -> Generator[DecodedPicture | None, None, None]:
        """Frames as they are decoded; None when a while passed without one. Ends when a stop is requested.

        Raises StreamError when the stream ends.
        """
        ...
