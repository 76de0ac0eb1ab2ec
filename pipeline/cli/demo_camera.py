"""``watchword demo-camera``: the demo camera alone."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

from pipeline.cli.console import stdout_console
from pipeline.cli.errors import UsageProblem
from pipeline.cli.signals import on_stop_signals


def run_demo_camera(host: str, port: int, video: Path | None) -> int:
    """Serves until a signal comes. Raises UsageProblem when the port is taken."""
    from ingest.demo_camera import DemoCamera, PhotoClip, VideoFileSource

    source = VideoFileSource(video) if video is not None else PhotoClip()
    camera = DemoCamera(source, host=host, port=port)
    stops: SimpleQueue[None] = SimpleQueue()
    with on_stop_signals(lambda: stops.put(None)):
        try:
            camera.start()
        except OSError as error:
            raise UsageProblem(f"the demo camera can't listen on {host}:{port}: {error.strerror}") from None
        stdout_console().print(f"demo camera: {camera.url}")
        stops.get()
        camera.stop()
    return 0
