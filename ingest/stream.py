"""One connection to a camera (or one pass over a file) through PyAV: opened, read, closed by the same thread."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack
from threading import Event
from types import TracebackType
from typing import Self

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream as AvVideoStream

from ingest.decoder import Decoder, DecoderDevices
from ingest.h264_gaps import FrameNumGaps
from ingest.source import DecodedPicture, FrameSource, SourceKind, device_of, file_of, kind_of
from ingest.stream_errors import Failure, StreamError, classify_open, classify_read
from ingest.taint import LogLine, Taint, tells_damage
from ingest.webcam import WebcamStream
from pipeline.config import CameraConfig
from pipeline.messages import CameraState
from pipeline.reasons import Reason

READ_POLL_S = 1.0
"""A read that waits for so long is interrupted, to look at deadlines and the stop request, and then continued: an RTSP
connection survives that (measured: frames go on after 4 s of stall). Together with the parser, which then gives out
what it holds first, a stop takes up to twice as long."""

DEFAULT_FPS = 25.0
SLOWEST_FPS = 0.02
_LIVE_OPTIONS = {
    "analyzeduration": "1000000",
    "probesize": "1000000",
    "fpsprobesize": "0",
    # No waiting for a first time stamp, which is not looked at: measured at 25 fps, 0.24 s instead of 0.52 s until the
    # stream is open, and one old frame in the backlog instead of nine.
    "max_ts_probe": "0",
}
_RTSP_OPTIONS = {
    "allowed_media_types": "video",
    "max_delay": "500000",
}


def open_source(config: CameraConfig, stop: Event, devices: DecoderDevices) -> FrameSource:
    """What the camera's URL names, not yet opened."""
    if device_of(config.url) is not None:
        return WebcamStream(config, stop)
    return VideoStream(config, stop, devices)


class VideoStream:
    """Use as a context manager: entering opens (raises :class:`StreamError`), leaving tears the session down.

    Opening takes up to twice ``open_timeout_s`` (once for the dialogue, once for the first packets).
    """

    def __init__(self, config: CameraConfig, stop: Event, devices: DecoderDevices | None = None) -> None:
        self._config = config
        self._stop = stop
        self._devices = devices or DecoderDevices()
        self._kind = kind_of(config.url)
        self._log: list[LogLine] = []
        self._open = ExitStack()
        self._container: InputContainer | None = None
        self._video: AvVideoStream | None = None
        self._decoder: Decoder | None = None
        self._gaps: FrameNumGaps | None = None
        self.last_packet = time.monotonic()

    @property
    def live(self) -> bool:
        """Whether it is a camera, not a file."""
        return self._kind is not SourceKind.FILE

    @property
    def fps(self) -> float:
        """Frames a second as the stream says, up to 60; 25 when it says nothing credible."""
        rate = self._video.average_rate or self._video.guessed_rate if self._video else None
        return float(rate) if rate and SLOWEST_FPS <= rate <= 60 else DEFAULT_FPS

    @property
    def codec(self) -> str:
        """Name of the video codec, such as ``h264``; empty before the stream is open."""
        return self._decoder.codec if self._decoder else ""

    @property
    def decoder(self) -> str:
        """``cpu`` or the name of a device; empty before the stream is open."""
        return self._decoder.name if self._decoder else ""

    @property
    def keyframes_only(self) -> bool:
        return self._decoder is not None and self._decoder.keyframes_only

    @keyframes_only.setter
    def keyframes_only(self, wanted: bool) -> None:
        if self._decoder is not None and self._decoder.keyframes_only != wanted:
            self._decoder.keyframes_only = wanted

    def __enter__(self) -> Self:
        try:
            source = self._config.source
        except (OSError, ValueError) as error:
            raise StreamError(Failure(CameraState.UNSUPPORTED, Reason.SECRET, type(error).__name__)) from None
        prepare_libav_log()
        capture = av.logging.Capture()
        self._log = capture.__enter__()
        self._open.callback(capture.__exit__, None, None, None)
        started = time.monotonic()
        try:
            self._container = self._open.enter_context(self._connect(source))
        except (av.error.FFmpegError, OSError, ValueError) as error:
            lines = [message for _, _, message in self._log]
            self._open.close()
            elapsed = time.monotonic() - started
            raise StreamError(
                classify_open(error, elapsed, self._config.open_timeout_s, lines, not self.live)
            ) from None
        try:
            self._video = self._first_video(self._container)
            self._decoder = self._devices.decoder_for(self._video, self._config.decode)
        except StreamError:
            self._open.close()
            raise
        # What was said until here (of analysis, of devices that are not there) is no damage of a picture to come.
        self._log.clear()
        self.last_packet = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open.close()

    def pictures(self) -> Generator[DecodedPicture | None, None, None]:
        """Frames as they are decoded; None when a while passed without one, so that the caller can look at its clock.

        Ends when a stop is requested. Raises :class:`StreamError` when the stream ends.
        """
        container, video, decoder = self._container, self._video, self._decoder
        if container is None or video is None or decoder is None:
            raise RuntimeError("the stream is not open")
        taint = Taint()
        if self._kind is SourceKind.RTSP and decoder.codec == "h264":
            self._gaps = FrameNumGaps(video.codec_context.extradata or b"")
        pace = None if self.live else _Pace(self._stop)
        asked = time.monotonic()
        while not self._stop.is_set():
            try:
                for packet in container.demux(video):
                    now = self.last_packet = time.monotonic()
                    waited = now - asked
                    frames = self._decode(decoder, packet, taint, now)
                    for frame in frames:
                        if pace is not None:
                            pace.wait(frame)
                        yield DecodedPicture(frame, taint.frame(frame.key_frame, now), waited, frame.key_frame)
                    if not frames:
                        yield None
                    if self._stop.is_set():
                        return
                    asked = time.monotonic()
            except av.error.ExitError:
                if self._kind is SourceKind.HTTP:  # libav's HTTP does not survive an interrupted read
                    raise StreamError(Failure(CameraState.STALLED, Reason.NO_FRAMES)) from None
                yield None
            except (av.error.FFmpegError, OSError) as error:
                raise StreamError(classify_read(error)) from None
            else:
                # libav ends the iteration without an error when the camera closes the connection.
                raise StreamError(Failure(CameraState.STALLED, Reason.STREAM_ENDED))

    def _connect(self, source: str) -> InputContainer:
        config = self._config
        path = file_of(config.url)
        if path is not None:
            return av.open(str(path), metadata_errors="ignore")
        if self._kind is SourceKind.RTSP:
            read_timeout = READ_POLL_S
            options = {"rtsp_transport": config.transport, **_RTSP_OPTIONS}
        else:
            read_timeout = config.stall_timeout_s
            options = {}
        if config.url.lower().startswith(("rtsps://", "https://")):
            options["tls_verify"] = "1" if config.tls_verify else "0"  # libav's own default is not to look
            if config.tls_ca_file is not None:
                options["ca_file"] = str(config.tls_ca_file)
        return av.open(
            source,
            timeout=(config.open_timeout_s, read_timeout),
            options={**options, **_LIVE_OPTIONS},
            metadata_errors="ignore",
        )

    @staticmethod
    def _first_video(container: InputContainer) -> AvVideoStream:
        for stream in container.streams.video:
            # A stream whose codec has no decoder here has no codec context.
            if getattr(stream, "codec_context", None) is not None:
                return stream
        raise StreamError(Failure(CameraState.UNSUPPORTED, Reason.CODEC, "no video stream that can be decoded"))

    def _decode(self, decoder: Decoder, packet: Packet[AvVideoStream], taint: Taint, now: float) -> list[VideoFrame]:
        try:
            frames = decoder.decode(packet)
        except av.error.InvalidDataError:
            frames = []
            damaged = True
        else:
            damaged = tells_damage(self._log) or any(frame.is_corrupt for frame in frames)
        self._log.clear()
        if self._gaps is not None and self._gaps.lacks_before(bytes(packet)):
            damaged = True
        taint.packet(packet.is_keyframe, damaged, now)
        return frames


class _Pace:
    """Gives a file's frames out at the file's own speed."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop
        self._started = time.monotonic()
        self._first: float | None = None

    def wait(self, frame: VideoFrame) -> None:
        if frame.time is None:
            return
        if self._first is None:
            self._first = frame.time
        self._stop.wait(max(0.0, self._started + frame.time - self._first - time.monotonic()))


def prepare_libav_log() -> None:
    """libav's log goes to the capture of the thread that causes it, complete; nothing of it to Python's loggers raw."""
    av.logging.set_level(av.logging.WARNING)
    av.logging.set_skip_repeated(False)
