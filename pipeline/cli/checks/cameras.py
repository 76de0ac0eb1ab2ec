"""Each camera: a connection, a first picture, and what kind of stream it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.cli.checks.finding import Finding, ok, problem, warning
from pipeline.config import CameraConfig
from pipeline.reasons import REASON_TEXT, Reason
from pipeline.redaction import redact

AT_ONCE = 8


def check_cameras(cameras: Sequence[CameraConfig], timeout: float) -> Iterator[Finding]:
    """Opens up to :data:`AT_ONCE` cameras at a time; findings come in the order of the configuration."""
    if not cameras:
        yield warning("cameras", "the configuration names none")
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(cameras)), thread_name_prefix="check-camera") as pool:
        yield from pool.map(lambda camera: check_camera(camera, timeout), cameras)


def check_camera(camera: CameraConfig, timeout: float) -> Finding:
    """Waits up to ``timeout`` seconds for the first picture after the connection was opened."""
    subject = f"camera {camera.id}"
    if not camera.enabled:
        return warning(subject, "is disabled")
    from ingest.decoder import DecoderDevices
    from ingest.stream import open_source
    from ingest.stream_errors import StreamError

    stop = threading.Event()
    limited = camera.model_copy(update={"open_timeout_s": min(camera.open_timeout_s, timeout)})
    begun = time.monotonic()
    try:
        with open_source(limited, stop, DecoderDevices()) as stream:
            opened = time.monotonic()
            for picture in stream.pictures():
                if picture is not None:
                    frame, took = picture.frame, time.monotonic() - begun
                    return ok(
                        subject,
                        f"{frame.width}x{frame.height} {stream.codec}, {stream.fps:g} fps, first picture after "
                        f"{took:.1f} s, {redact(camera.url)}",
                    )
                if time.monotonic() - opened > timeout:
                    break
    except StreamError as error:
        failure = error.failure
        detail = f" ({failure.detail})" if failure.detail else ""
        return problem(subject, f"{redact(camera.url)}: {REASON_TEXT[failure.reason]}{detail}")
    return problem(subject, f"{redact(camera.url)}: {REASON_TEXT[Reason.FIRST_FRAME_TIMEOUT]}")
