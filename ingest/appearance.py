"""What somebody wears, roughly: the colours of the upper body, to tell two people apart who pass each other."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.frame import Image
from pipeline.messages import Box

Look = NDArray[np.float32]
"""Histogram over the colours in CIELAB, smoothed, sums to one."""

_SIDE = 24
_BINS = (6, 8, 8)
_TORSO = (0.25, 0.15, 0.75, 0.5)
"""Part of the box that shows the upper body: little background, and seldom hidden by what stands in front."""


def look_of(image: Image, box: Box) -> Look | None:
    """None when the box is too small to have colours."""
    x1, y1, x2, y2 = box
    wide, high = x2 - x1, y2 - y1
    left, right = int(x1 + _TORSO[0] * wide), int(x1 + _TORSO[2] * wide)
    top, bottom = int(y1 + _TORSO[1] * high), int(y1 + _TORSO[3] * high)
    part = image[max(0, top) : bottom, max(0, left) : right]
    if min(part.shape[:2]) < 3:
        return None
    small = cv2.resize(part, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    lab = cv2.cvtColor(small, cv2.COLOR_BGR2LAB)
    # Nearly all clothes have a and b in the middle, 64 to 192 of 0 to 255; the bins are there.
    lab[:, :, 1:] = np.clip(lab[:, :, 1:], 64, 191)
    histogram = cv2.calcHist([lab], [0, 1, 2], None, list(_BINS), [0, 256, 64, 192, 64, 192])
    smooth = np.asarray(histogram, dtype=np.float32)
    for axis in range(3):
        # A colour near the border of two bins must not look like another one in the next frame.
        ahead, behind = np.roll(smooth, 1, axis), np.roll(smooth, -1, axis)
        ahead[(slice(None),) * axis + (0,)] = 0
        behind[(slice(None),) * axis + (-1,)] = 0
        smooth = 0.5 * smooth + 0.25 * (ahead + behind)
    total = float(smooth.sum())
    return smooth / total if total > 0 else None


def likeness(a: Look | None, b: Look | None) -> float | None:
    """0 to 1 (Bhattacharyya's coefficient); None when one of them is not known."""
    if a is None or b is None:
        return None
    return float(np.sqrt(a * b).sum())
