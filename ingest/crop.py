"""Cutting a person out of a frame, in a shape that every vision-language model takes."""

from __future__ import annotations

import math

import cv2
import numpy as np

from ingest.frame import Image
from ingest.privacy import obscure
from pipeline.config import Blur, CropConfig
from pipeline.messages import Box

Window = tuple[int, int, int, int]
"""x1, y1, x2, y2 in whole pixels of the frame; x2 and y2 are exclusive."""


def crop_window(box: Box, frame_width: int, frame_height: int, config: CropConfig) -> Window | None:
    """What to cut out: the box with context, within the frame, at least ``min_side`` wide and high, and no more than
    ``max_aspect`` times as long in one direction as in the other.

    None when the box is smaller than ``min_side`` in both directions, or when the frame has no room for such a window.
    Processors of vision-language models fail on crops of 16x16, 31x639 or 4000x12 pixels (GLM-V #146, lmms-eval #598).
    """
    x1, y1 = max(0.0, box[0]), max(0.0, box[1])
    x2, y2 = min(float(frame_width), box[2]), min(float(frame_height), box[3])
    if not all(map(math.isfinite, box)) or x2 <= x1 or y2 <= y1 or max(x2 - x1, y2 - y1) < config.min_side:
        return None
    wide = (x2 - x1) * (1 + 2 * config.padding)
    high = (y2 - y1) * (1 + 2 * config.padding)
    wide = min(max(wide, config.min_side, high / config.max_aspect), frame_width)
    high = min(max(high, config.min_side, wide / config.max_aspect), frame_height)
    # Where the frame is too thin to widen the short side, the long one gives way.
    wide, high = min(wide, high * config.max_aspect), min(high, wide * config.max_aspect)
    left, right = _span((x1 + x2) / 2, wide, frame_width)
    top, bottom = _span((y1 + y2) / 2, high, frame_height)
    if min(right - left, bottom - top) < config.min_side:
        return None
    return left, top, right, bottom


def cut(image: Image, window: Window, max_pixels: int, hidden: tuple[Box, ...] = (), blur: Blur = "none") -> Image:
    """A copy of that part of the frame, scaled down to at most ``max_pixels``, ``hidden`` regions unrecognisable."""
    left, top, right, bottom = window
    part = image[top:bottom, left:right]
    if hidden:
        part = part.copy()
        obscure(part, [(x1 - left, y1 - top, x2 - left, y2 - top) for x1, y1, x2, y2 in hidden], blur)
    scale = math.sqrt(max_pixels / (part.shape[0] * part.shape[1]))
    if scale >= 1:
        return part.copy()
    size = (max(1, int(part.shape[1] * scale)), max(1, int(part.shape[0] * scale)))
    return np.asarray(cv2.resize(part, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def encode_jpeg(image: Image, quality: int) -> bytes:
    """Raises ValueError for a picture that can't be encoded.

    By libjpeg-turbo: OpenCV's wheels are built with it (``cv2.getBuildInformation()`` says so; a test looks).
    """
    done, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, quality))
    if not done:
        raise ValueError(f"a picture of {image.shape} can't be encoded as JPEG")
    return bytes(data)


def _span(centre: float, length: float, limit: int) -> tuple[int, int]:
    """Whole pixels around the centre, moved into 0..limit; as long as asked or, by rounding, a fraction shorter."""
    whole = min(math.floor(length + 1e-6), limit)
    start = min(max(0, round(centre - whole / 2)), limit - whole)
    return start, start + whole
