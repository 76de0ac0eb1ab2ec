"""One H.264 encoder for all clients of the demo camera."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import av
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from ingest.demo_camera.clip import Picture

_START_CODE = re.compile(rb"\x00\x00\x00?\x01")
PIXEL_FORMATS = ("yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "gray")
"""What libx264 encodes and the demo camera offers; the first is what cameras send."""
NAL_IDR = 5
NAL_SPS = 7
NAL_PPS = 8


@dataclass(frozen=True, slots=True)
class AccessUnit:
    """The coded form of one picture.

    Attributes:
        index: number of the picture, counted at the camera's frame rate since the start.
        nals: NAL units without start codes.
    """

    index: int
    nals: tuple[bytes, ...]

    @property
    def keyframe(self) -> bool:
        """Whether decoding can start here."""
        return any(nal_type(nal) == NAL_IDR for nal in self.nals)


class H264Encoder:
    """libx264 without delay (a picture in, its access unit out), one slice a picture, SPS and PPS before each keyframe.

    Pictures of another size are scaled. Not safe for use by several threads at once.
    """

    def __init__(self, width: int, height: int, fps: float, gop: int, pixel_format: str = PIXEL_FORMATS[0]) -> None:
        rate = Fraction(fps).limit_denominator(1000)
        codec = av.CodecContext.create("libx264", "w")
        if not isinstance(codec, VideoCodecContext):
            raise TypeError("libx264 is not a video codec in this build of PyAV")
        codec.width = width
        codec.height = height
        codec.pix_fmt = pixel_format
        codec.framerate = rate
        codec.time_base = 1 / rate
        codec.thread_count = 1
        codec.options = {
            "preset": "ultrafast",
            "tune": "zerolatency",
            "crf": "23",
            "x264-params": f"keyint={gop}:min-keyint={gop}:scenecut=0:repeat-headers=1",
        }
        self._codec = codec
        self._time_base = 1 / rate

    def encode(self, index: int, picture: Picture) -> AccessUnit:
        """``index`` must grow from call to call; a gap is a pause."""
        frame = VideoFrame.from_ndarray(picture, format="bgr24")
        frame.pts = index
        frame.time_base = self._time_base
        data = b"".join(bytes(packet) for packet in self._codec.encode(frame))
        return AccessUnit(index, split_nals(data))


def split_nals(annex_b: bytes) -> tuple[bytes, ...]:
    """NAL units of an Annex B byte stream (ITU-T H.264, B.1); the zero byte before a long start code goes with it."""
    return tuple(nal for nal in _START_CODE.split(annex_b) if nal)


def nal_type(nal: bytes) -> int:
    """``nal_unit_type``, the low five bits of the first byte."""
    return nal[0] & 0x1F
