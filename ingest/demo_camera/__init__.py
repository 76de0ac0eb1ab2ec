"""A camera for demos and tests: a small, real RTSP server that streams a clip with people, and can be made to fail."""

from ingest.demo_camera.access import Access, Credentials
from ingest.demo_camera.clip import ClipSource, PhotoClip
from ingest.demo_camera.faults import FaultError, Faults, ScheduledFault
from ingest.demo_camera.server import DemoCamera
from ingest.demo_camera.video_file import VideoFileSource

__all__ = [
    "Access",
    "ClipSource",
    "Credentials",
    "DemoCamera",
    "FaultError",
    "Faults",
    "PhotoClip",
    "ScheduledFault",
    "VideoFileSource",
]
