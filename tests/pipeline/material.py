"""Small messages and pictures for the tests."""

from __future__ import annotations

import io
import time
from typing import Any

from PIL import Image

from pipeline.messages import CropKind, CropMessage, TrackMessage, TrackPhase
from pipeline.queue import keys


def jpeg_of(colour: int = 128, size: tuple[int, int] = (48, 96)) -> bytes:
    """A real JPEG; different colours have different bytes."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (colour % 256, 40, 200)).save(buffer, "JPEG")
    return buffer.getvalue()


def crop_of(crop_id: str, *, camera: str = "front", track: str = "front/a-1", **changes: Any) -> CropMessage:
    now = time.time()
    values: dict[str, Any] = {
        "crop_id": crop_id,
        "camera": camera,
        "track": track,
        "kind": CropKind.EARLY,
        "time": now,
        "box": (10.0, 20.0, 58.0, 116.0),
        "score": 0.8,
        "quality": 0.5,
        "frame_id": 7,
        "picture_key": keys.picture(crop_id),
        "label": "person",
        "deadline": now + 120.0,
        "width": 48,
        "height": 96,
        "frame_width": 640,
        "frame_height": 480,
    }
    return CropMessage(**(values | changes))


def track_of(phase: TrackPhase, *, camera: str = "front", track: str = "front/a-1", **changes: Any) -> TrackMessage:
    now = time.time()
    values: dict[str, Any] = {
        "track": track,
        "camera": camera,
        "phase": phase,
        "label": "person",
        "time": now,
        "first_seen": now - 3.0,
        "last_seen": now,
        "box": (10.0, 20.0, 58.0, 116.0),
        "score": 0.8,
    }
    return TrackMessage(**(values | changes))
