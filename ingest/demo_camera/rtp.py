"""H.264 in RTP: RFC 3550 headers, RFC 6184 payload (single NAL units and FU-A fragments)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ingest.demo_camera.encoder import AccessUnit

CLOCK_RATE = 90_000
PAYLOAD_TYPE = 96
MAX_PAYLOAD = 1400
"""Bytes; below an Ethernet MTU with all headers, as cameras choose it."""

_FU_A = 28


class RtpPacketizer:
    """Turns access units into RTP packets of one stream: own SSRC, own sequence numbers, own time offset."""

    def __init__(self, ssrc: int, sequence: int, time_offset: int, fps: float) -> None:
        self._ssrc = ssrc
        self._sequence = sequence
        self._time_offset = time_offset
        self._fps = fps

    @property
    def next_sequence(self) -> int:
        """Of the next packet (for the RTP-Info header)."""
        return self._sequence

    def timestamp(self, index: int, shift_s: float = 0.0) -> int:
        """RTP time of a picture, 90 kHz, modulo 2^32; ``shift_s`` is what the camera's clock is wrong by."""
        return (self._time_offset + int(index * CLOCK_RATE / self._fps + shift_s * CLOCK_RATE)) & 0xFFFFFFFF

    def packets(self, unit: AccessUnit, shift_s: float = 0.0) -> Iterator[bytes]:
        """The marker bit is set on the last packet of the access unit (RFC 6184, 5.1)."""
        timestamp = self.timestamp(unit.index, shift_s)
        last = len(unit.nals) - 1
        for position, nal in enumerate(unit.nals):
            payloads = list(payloads_of(nal))
            for number, payload in enumerate(payloads):
                marker = position == last and number == len(payloads) - 1
                yield self._header(timestamp, marker) + payload

    def _header(self, timestamp: int, marker: bool) -> bytes:
        header = struct.pack("!BBHII", 0x80, marker << 7 | PAYLOAD_TYPE, self._sequence, timestamp, self._ssrc)
        self._sequence = (self._sequence + 1) & 0xFFFF
        return header


def payloads_of(nal: bytes, limit: int = MAX_PAYLOAD) -> Iterator[bytes]:
    """A NAL unit as it is when it fits, else as FU-A fragments (RFC 6184, 5.8)."""
    if len(nal) <= limit:
        yield nal
        return
    indicator = nal[0] & 0xE0 | _FU_A
    kind = nal[0] & 0x1F
    body = nal[1:]
    size = limit - 2
    for offset in range(0, len(body), size):
        start = 0x80 if offset == 0 else 0
        end = 0x40 if offset + size >= len(body) else 0
        yield bytes((indicator, start | end | kind)) + body[offset : offset + size]
