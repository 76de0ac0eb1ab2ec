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
        for findings in pool.map(lambda camera: check_streams(camera, timeout), cameras):
            yield from findings


def check_decoders(cameras: Sequence[CameraConfig]) -> Iterator[Finding]:
    """Which devices can decode, where any camera may use one."""
    if all(camera.decode == "cpu" for camera in cameras):
        return
    from ingest.decoder import device_faults

    faults = device_faults()
    usable = [name for name, fault in faults.items() if not fault]
    why = "; ".join(f"{name}: {fault}" for name, fault in faults.items() if fault)
    text = ", ".join(usable) if usable else f"none, so the CPU decodes ({why or 'PyAV was built without any'})"
    yield ok("decode devices", text)


def check_streams(camera: CameraConfig, timeout: float) -> list[Finding]:
    """The camera's stream, and its sub-stream where it has one."""
    findings = [check_camera(camera, timeout)]
    if camera.enabled and camera.substream_url is not None:
        small = camera.model_copy(update={"url": camera.substream_url})
        findings.append(check_camera(small, timeout, "sub-stream of "))
    return findings


def check_camera(camera: CameraConfig, timeout: float, which: str = "") -> Finding:
    """Waits up to ``timeout`` seconds for the first picture after the connection was opened."""
    subject = f"{which}camera {camera.id}"
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
