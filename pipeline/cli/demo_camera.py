"""``watchword demo-camera``: the demo camera alone, with whatever is wrong with it."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from pipeline.cli.console import stdout_console
from pipeline.cli.errors import UsageProblem
from pipeline.cli.signals import on_stop_signals
from pipeline.redaction import register_secret

if TYPE_CHECKING:
    from ingest.demo_camera import Access, DemoCamera

PASSWORD_VARIABLE = "WATCHWORD_DEMO_CAMERA_PASSWORD"


@dataclass(frozen=True, slots=True)
class DemoCameraOptions:
    """The command's options, as typed."""

    host: str = "127.0.0.1"
    port: int = 8554
    video: Path | None = None
    fps: float = 10
    gop: int | None = None
    transports: tuple[str, ...] = ()
    username: str | None = None
    scheme: str = "digest"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    faults: tuple[str, ...] = ()


def run_demo_camera(options: DemoCameraOptions) -> int:
    """Serves until a signal comes. Raises UsageProblem for options that don't fit and when the port is taken."""
    camera = demo_camera(options)
    stops: SimpleQueue[None] = SimpleQueue()
    with on_stop_signals(lambda: stops.put(None)):
        try:
            camera.start()
        except OSError as error:
            raise UsageProblem(
                f"the demo camera can't listen on {options.host}:{options.port}: {error.strerror}"
            ) from None
        stdout_console().print(f"demo camera: {camera.url}")
        stops.get()
        camera.stop()
    return 0


def demo_camera(options: DemoCameraOptions) -> DemoCamera:
    """The camera that the options describe, not yet started. Raises UsageProblem."""
    from ingest.demo_camera import DemoCamera, FaultError, PhotoClip, ScheduledFault, VideoFileSource
    from ingest.demo_camera.server import TRANSPORTS

    unknown = sorted(set(options.transports) - set(TRANSPORTS))
    if unknown:
        raise UsageProblem(f"--transport {unknown[0]!r} is not one of {', '.join(TRANSPORTS)}")
    try:
        script = [ScheduledFault.parse(text) for text in options.faults]
    except FaultError as error:
        raise UsageProblem(f"--fault: {error}") from None
    source = VideoFileSource(options.video) if options.video is not None else PhotoClip()
    return DemoCamera(
        source,
        host=options.host,
        port=options.port,
        fps=options.fps,
        gop=options.gop,
        transports=options.transports or TRANSPORTS,
        access=_access(options),
        tls=_tls(options),
        script=script,
    )


def _access(options: DemoCameraOptions) -> Access | None:
    from ingest.demo_camera import Access, Credentials

    if options.scheme not in ("basic", "digest"):
        raise UsageProblem(f"--auth {options.scheme!r} is not one of basic, digest")
    if options.username is None:
        return None
    password = os.environ.get(PASSWORD_VARIABLE)
    if not password:
        raise UsageProblem(f"--username needs a password in the environment variable {PASSWORD_VARIABLE}")
    register_secret(password)
    return Access(Credentials(options.username, password), "basic" if options.scheme == "basic" else "digest")


def _tls(options: DemoCameraOptions) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageProblem(f"--tls-cert {options.tls_cert}: {error.strerror or error}") from None
    return context
