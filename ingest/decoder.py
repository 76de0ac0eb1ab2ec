"""Which decoder reads a stream: the CPU's, or one of the devices that PyAV was built for."""

from __future__ import annotations

import logging
import threading

import av
from av.codec import Codec
from av.codec.context import CodecContext
from av.codec.hwaccel import HWAccel, hwdevices_available
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream as AvVideoStream

from ingest.stream_errors import Failure, StreamError
from pipeline.messages import CameraState
from pipeline.reasons import Reason

log = logging.getLogger(__name__)

CPU = "cpu"
AUTO = "auto"
# How frames look that were fetched from a device; libav's own decoders give planar ones.
_DEVICE_FORMATS = ("nv12", "nv16", "p010le", "p016le", "p210le", "p216le")
CATCH_UP_PIXELS = 40e6
"""As many are decoded at once when a rest ends in the middle of a group of pictures: about 0.2 s of one core."""
LONGEST_GROUP = 1000
"""Packets. A stream without a keyframe for so long has none: it refreshes bit by bit, and can't be rested on."""


class Decoder:
    """Decodes the packets of one stream, in the thread that calls it.

    While ``keyframes_only`` is set, what lies between two keyframes is put aside. When that ends, the packets since the
    last keyframe are decoded in one go, so that the next picture is whole; where that would take too long (a large
    picture, a long group), decoding goes on with the next keyframe.

    ``name`` is ``cpu`` or the device's; it becomes ``cpu`` when libav, allowed to, decodes in software after all.
    """

    def __init__(self, context: VideoCodecContext, name: str = CPU) -> None:
        # Complaints of the decoder reach the log of this thread only when it decodes in this thread (measured on a
        # damaged file: AUTO and FRAME threading 0 lines, SLICE 8, NONE 23).
        context.thread_type = "NONE"  # type: ignore[assignment]
        # Without it a slice whose noise decodes to some picture is taken as it is: measured on H.264 with damaged
        # slices, 7 of 283 went unnoticed without and 1 with it (CAVLC; with CABAC 4 of 108 either way), none was blamed
        # wrongly.
        context.options = {"err_detect": "aggressive"}
        self._context = context
        self._aside: list[Packet[AvVideoStream]] = []
        self._passed_over = 0
        self._has_keyframes = True
        self.keyframes_only = False
        self.name = name

    @property
    def codec(self) -> str:
        """Name of the codec, such as ``h264``."""
        return self._context.name

    def decode(self, packet: Packet[AvVideoStream]) -> list[VideoFrame]:
        """Frames that are ready. Raises av.error.InvalidDataError for a packet that makes no sense."""
        if packet.is_keyframe or packet.size == 0:
            self._aside.clear()
            self._passed_over = 0
        elif self._passes_over():
            if self._passed_over <= self._most_aside:
                self._aside.append(packet)
            return []
        elif self._passed_over:
            self._catch_up()
        frames = self._context.decode(packet)
        if self.name != CPU and frames and frames[0].format.name not in _DEVICE_FORMATS:
            log.warning("decoder: %s can't decode this stream; it is decoded on the CPU", self.name)
            self.name = CPU
        return frames

    def _passes_over(self) -> bool:
        """Whether the next packet is not decoded now: for rest, or because what it builds on was not decoded."""
        if not self._has_keyframes:
            return False
        if not self.keyframes_only and self._passed_over <= self._most_aside:
            return False
        self._passed_over += 1
        self._has_keyframes = self._passed_over < LONGEST_GROUP
        return self._has_keyframes

    @property
    def _most_aside(self) -> int:
        return int(CATCH_UP_PIXELS / max(1, self._context.width * self._context.height))

    def _catch_up(self) -> None:
        """The pictures are too old to be shown; what comes next is built on them."""
        aside, self._aside = self._aside, []
        self._passed_over = 0
        for packet in aside:
            self._context.decode(packet)


def device_faults(codec: str = "h264") -> dict[str, str]:
    """Every device that this build of PyAV knows, with why it can't decode ``codec`` here; empty text: it can.

    Tries each one: the driver may be there without the hardware, or closed to this user.
    """
    faults: dict[str, str] = {}
    for name in hwdevices_available():
        try:
            HWAccel(name, allow_software_fallback=False).create(Codec(codec, "r"))
        except (av.error.FFmpegError, OSError, ValueError, RuntimeError) as error:
            unsupported = isinstance(error, NotImplementedError)
            text = f"decodes no {codec}" if unsupported else getattr(error, "strerror", None)
            faults[name] = text or type(error).__name__
        else:
            faults[name] = ""
    return faults


class DecoderDevices:
    """Finds each stream a decoder, and tells once why a device can't be used. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def decoder_for(self, video: AvVideoStream, wanted: str) -> Decoder:
        """``wanted``: ``cpu``; ``auto`` for a device if one can be used and else the CPU; or the name of a device.

        Raises StreamError (UNSUPPORTED) when a device that is asked for by name can't be used: never something else in
        its place (cases R75).
        """
        software = video.codec_context
        if wanted == CPU:
            return Decoder(software)
        able = [config.device_type.name for config in software.codec.hardware_configs or [] if config.is_supported]
        available = hwdevices_available()
        candidates = [name for name in available if name in able] if wanted == AUTO else [wanted]
        faults = []
        for name in candidates:
            if name not in available:
                faults.append(f"{name}: this build of PyAV has {', '.join(available) or 'none'}")
            elif name not in able:
                faults.append(f"{name}: decodes no {software.name}")
            else:
                try:
                    return Decoder(_on_device(software, name, wanted == AUTO), name)
                except (av.error.FFmpegError, OSError, ValueError, RuntimeError) as error:
                    faults.append(f"{name}: {getattr(error, 'strerror', None) or type(error).__name__}")
        if wanted != AUTO:
            raise StreamError(Failure(CameraState.UNSUPPORTED, Reason.DECODER, "; ".join(faults)))
        self._tell("; ".join(faults) or f"no device decodes {software.name}")
        return Decoder(software)

    def _tell(self, why: str) -> None:
        with self._lock:
            if why in self._told:
                return
            self._told.add(why)
        log.warning("decoder: auto uses the CPU (%s)", why)


def _on_device(software: VideoCodecContext, device: str, may_fall_back: bool) -> VideoCodecContext:
    """Raises what libav raises when the device is not there."""
    context = CodecContext.create(
        software.codec.name, "r", hwaccel=HWAccel(device, allow_software_fallback=may_fall_back)
    )
    if not isinstance(context, VideoCodecContext) or not context.is_hwaccel:
        raise ValueError(f"{device} takes no {software.name}")
    if software.extradata:
        context.extradata = software.extradata
    return context
