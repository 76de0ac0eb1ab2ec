"""Pictures that an H.264 stream lacks: libav fills such gaps in silence.

A camera that can't send fast enough leaves out pictures by itself; over TCP no packet is missing then, and the decoder
goes on from the wrong reference (measured: 0 of 20 left-out pictures were told). The slice headers tell: ``frame_num``
counts reference pictures (ITU-T H.264, 7.4.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_SLICE, _IDR, _SPS = 1, 5, 7
_START_CODE = b"\x00\x00\x01"
_HEADER_BYTES = 64
"""Of a slice: its header's first fields are within fewer."""
_WITH_CHROMA_FORMAT = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)


class _Bits:
    """Reads bits of a NAL unit's payload, emulation prevention bytes taken out. Raises IndexError at its end."""

    def __init__(self, payload: bytes) -> None:
        self._data = payload.replace(b"\x00\x00\x03", b"\x00\x00")
        self._at = 0

    def flag(self) -> int:
        bit = self._data[self._at >> 3] >> (7 - (self._at & 7)) & 1
        self._at += 1
        return bit

    def number(self, bits: int) -> int:
        value = 0
        for _ in range(bits):
            value = value << 1 | self.flag()
        return value

    def unsigned(self) -> int:
        """ue(v), 9.1."""
        zeros = 0
        while not self.flag():
            zeros += 1
        return (1 << zeros) - 1 + self.number(zeros)

    def signed(self) -> int:
        """se(v), 9.1.1."""
        code = self.unsigned()
        return (code + 1) // 2 if code & 1 else -(code // 2)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What of a sequence parameter set is needed here."""

    frame_num_bits: int
    separate_planes: bool
    gaps_allowed: bool

    @classmethod
    def parse(cls, payload: bytes) -> _Sequence:
        """7.3.2.1.1, up to gaps_in_frame_num_value_allowed_flag. Raises IndexError."""
        bits = _Bits(payload)
        profile = bits.number(8)
        bits.number(16)
        bits.unsigned()
        separate = False
        if profile in _WITH_CHROMA_FORMAT:
            chroma = bits.unsigned()
            separate = chroma == 3 and bool(bits.flag())
            bits.unsigned()
            bits.unsigned()
            bits.flag()
            if bits.flag():
                for index in range(12 if chroma == 3 else 8):
                    if bits.flag():
                        _skip_scaling_list(bits, 16 if index < 6 else 64)
        frame_num_bits = bits.unsigned() + 4
        order = bits.unsigned()
        if order == 0:
            bits.unsigned()
        elif order == 1:
            bits.flag()
            bits.signed()
            bits.signed()
            for _ in range(bits.unsigned()):
                bits.signed()
        bits.unsigned()
        return cls(frame_num_bits, separate, bool(bits.flag()))


class FrameNumGaps:
    """Watches the access units of one stream, in Annex B form and in their order."""

    def __init__(self, extradata: bytes = b"") -> None:
        """``extradata`` holds the parameter sets that came with the session description."""
        self._sequence: _Sequence | None = None
        self._last_reference: int | None = None
        self.lacks_before(extradata)

    def lacks_before(self, access_unit: bytes) -> bool:
        """Whether a picture that this one may be built upon has not come. What can't be read is no gap."""
        try:
            for header, payload in _units(access_unit):
                kind = header & 0x1F
                if kind == _SPS:
                    self._sequence = _Sequence.parse(payload)
                elif kind in (_SLICE, _IDR):
                    return self._slice(kind, header >> 5 & 3, payload)
        except IndexError:  # damaged; the decoder says so
            self._last_reference = None
        return False

    def _slice(self, kind: int, importance: int, payload: bytes) -> bool:
        sequence = self._sequence
        if sequence is None or sequence.gaps_allowed:
            return False
        frame_num = 0
        if kind != _IDR:
            bits = _Bits(payload)
            for _ in range(3):
                bits.unsigned()
            if sequence.separate_planes:
                bits.number(2)
            frame_num = bits.number(sequence.frame_num_bits)
        last = self._last_reference
        if importance:
            self._last_reference = frame_num
        if kind == _IDR or last is None:
            return False
        return frame_num not in (last, (last + 1) % (1 << sequence.frame_num_bits))


def _units(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Header byte and first bytes of each NAL unit."""
    at = data.find(_START_CODE)
    while at >= 0 and at + 3 < len(data):
        start = at + 4
        kind = data[at + 3] & 0x1F
        at = -1 if kind in (_SLICE, _IDR) else data.find(_START_CODE, start)
        end = at if at >= 0 else len(data)
        yield data[start - 1], data[start : min(end, start + (1024 if kind == _SPS else _HEADER_BYTES))]


def _skip_scaling_list(bits: _Bits, size: int) -> None:
    """7.3.2.1.1.1."""
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.signed() + 256) % 256
        last = following or last
