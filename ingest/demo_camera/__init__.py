"""A camera for demos and tests: a small, real RTSP server that streams a clip with people, and can be made to fail."""

from ingest.demo_camera.clip import ClipSource, PhotoClip
from ingest.demo_camera.server import DemoCamera
from ingest.demo_camera.video_file import VideoFileSource

__all__ = ["ClipSource", "DemoCamera", "PhotoClip", "VideoFileSource"]
