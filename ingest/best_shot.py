"""The clearest picture of a person so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np

from ingest.crop import crop_window, cut
from ingest.detection import Detection, area, intersection
from ingest.frame import Frame, Image
from pipeline.config import CropConfig
from pipeline.messages import Box

EDGE_TOLERANCE = 0.01
"""A box so near to the frame's edge (share of the side, at least two pixels) counts as cut off: detectors stop a pixel
or two short of it."""
_SHARP_SIDE = 160
_HALF_SHARP = 150.0
"""Variance of the Laplacian at which the sharpness is one half; sharp people have 500 to 2000 at this scale."""
_HALF_SIZE = 96.0
"""Square root of the area in pixels at which the size is one half."""


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A picture of a person: already cut out and scaled, so that it holds little memory. All of one very frame."""

    picture: Image
    quality: float
    time: float
    frame_number: int
    box: Box
    score: float
    frame_width: int
    frame_height: int


def seen_on(detail: Frame, frame: Frame, box: Box) -> Box:
    """The box of something on ``frame``, in the pixels of another picture of the same view."""
    x, y = detail.width / frame.width, detail.height / frame.height
    return box[0] * x, box[1] * y, box[2] * x, box[3] * y


class BestShot:
    """Keeps the best shot of one track."""

    def __init__(self, config: CropConfig) -> None:
        self._config = config
        self.best: Shot | None = None

    def offer(self, frame: Frame, detection: Detection, others: Iterable[Box]) -> None:
        """Looks whether this is the best picture so far; ``others`` are the boxes of other people on the frame."""
        window = crop_window(detection.box, frame.width, frame.height, self._config)
        if window is None:
            return
        quality = quality_of(frame, detection, others)
        if self.best is not None and quality <= self.best.quality:
            return
        picture = cut(frame.image, window, self._config.max_pixels)
        self.best = Shot(
            picture,
            quality,
            frame.time,
            frame.number,
            detection.box,
            detection.score,
            frame.width,
            frame.height,
        )


def quality_of(frame: Frame, detection: Detection, others: Iterable[Box]) -> float:
    """0 to 1: how large, sharp and certain the person is; less when cut by the frame's edge or covered by another."""
    side = math.sqrt(area(detection.box))
    clear = 0.35 * side / (side + _HALF_SIZE) + 0.35 * sharpness(frame.image, detection.box) + 0.3 * detection.score
    hidden = max((covered(detection.box, other) for other in others), default=0.0)
    return clear * wholeness(detection.box, frame.width, frame.height) * (1 - 0.5 * hidden)


def sharpness(image: Image, box: Box) -> float:
    """0 to 1, from the variance of the Laplacian at one scale, so that near and far people compare."""
    x1, y1, x2, y2 = (int(v) for v in box)
    part = image[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1)]
    scale = _SHARP_SIDE / max(part.shape[:2])
    if scale < 1:
        part = np.asarray(cv2.resize(part, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    variance = float(cv2.Laplacian(cv2.cvtColor(part, cv2.COLOR_BGR2GRAY), cv2.CV_64F).var())
    return variance / (variance + _HALF_SHARP)


def wholeness(box: Box, width: int, height: int) -> float:
    """1 for a box free of the frame's edges; three quarters for each edge that it touches, one half at least."""
    near_x, near_y = max(2.0, EDGE_TOLERANCE * width), max(2.0, EDGE_TOLERANCE * height)
    touched = (box[0] <= near_x) + (box[1] <= near_y) + (box[2] >= width - near_x) + (box[3] >= height - near_y)
    return max(0.5, math.pow(0.75, touched))


def covered(box: Box, other: Box) -> float:
    """Share of ``box`` that ``other`` may hide: all they share when the other stands lower (nearer), else a third."""
    share = intersection(box, other) / area(box)
    return share if other[3] >= box[3] else share / 3
