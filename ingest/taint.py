"""Which frames of a stream can be trusted.

libav conceals damage silently: only the decoder's log and its marks on frames tell. A person found in a smeared frame,
or described from one, is worse than none, so everything from a complaint of the decoder to the next clean keyframe is
left out (Frigate #2100). How much is told (libavcodec 62, one damaged or missing slice a group of pictures):

- H.264, noise in the middle third of a slice: 282 of 283 with ``err_detect=aggressive`` where the encoder writes CAVLC
  (x264's ultrafast), 104 of 108 where it writes CABAC (veryfast); over UDP each lost packet.
- H.264, a whole picture missing within TCP (a camera that drops some by itself): none, 0 of 20; see h264_gaps.py.
- H.265, noise within a slice: none, 0 of 88; a missing picture: 20 of 20; over UDP each lost packet.
"""

from __future__ import annotations

from collections.abc import Iterable

import av

CLEAN_AFTER_S = 30.0
"""Streams that refresh bit by bit have no keyframes; so long without a complaint counts as clean, too."""

# Complaints about the stream's book-keeping that don't show in the picture; some cameras make one with every frame.
_HARMLESS = (
    "mmco:",
    "number of reference frames",
    "SEI type",
    "Late SEI",
    "deprecated pixel format",
)
_LOST_PACKETS = ("RTP: missed", "max delay reached")

LogLine = tuple[int, str, str]
"""Level (lower is worse), part of libav, message."""


def tells_damage(lines: Iterable[LogLine]) -> bool:
    """Whether libav's log lines speak of damage to the picture."""
    for level, _, message in lines:
        text = message.strip()
        if text.startswith(_LOST_PACKETS):
            return True
        if level <= av.logging.ERROR and not text.startswith(_HARMLESS):
            return True
    return False


class Taint:
    """Tainted from the start and from every damage on, until a keyframe comes out that was decoded after the damage.

    Packets and frames are told apart because a decoder with reordering gives out a keyframe later than it reads it.
    """

    def __init__(self) -> None:
        self.tainted = True
        self._clean_keyframe_read = False
        self._damaged_at: float | None = None

    def packet(self, keyframe: bool, damaged: bool, now: float) -> None:
        """After a packet was decoded, before its frames are judged."""
        if damaged:
            self.tainted = True
            self._clean_keyframe_read = False
            self._damaged_at = now
        elif keyframe:
            self._clean_keyframe_read = True
        if self._damaged_at is None:
            self._damaged_at = now

    def frame(self, keyframe: bool, now: float) -> bool:
        """Whether the frame can be used."""
        if self.tainted and keyframe and self._clean_keyframe_read:
            self.tainted = False
        if self.tainted and self._damaged_at is not None and now - self._damaged_at >= CLEAN_AFTER_S:
            self.tainted = False
        return not self.tainted
