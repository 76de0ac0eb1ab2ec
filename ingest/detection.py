"""What was found on a frame, and the check that every box passes before anything else sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.messages import Box

Rows = NDArray[np.float32]
"""What the detector gives for one frame: n x 6, x1, y1, x2, y2 in pixels, the score, and the number of the class."""

Labels = Mapping[int, str]
"""The classes that a camera looks for, by their number in its network."""

DUPLICATE_IOU = 0.9
"""YOLO26's end-to-end head now and then gives one person twice (ultralytics #23850, cases R39)."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Somebody or something in a frame; the box lies within it and has an area."""

    box: Box
    score: float
    label: str


@dataclass(frozen=True, slots=True)
class CheckedBoxes:
    """``invalid`` counts boxes that were refused; duplicates are left out silently, best score first."""

    detections: tuple[Detection, ...]
    invalid: int


def check_boxes(rows: Rows, width: int, height: int, least_score: float, labels: Labels) -> CheckedBoxes:
    """Refuses infinite, NaN, inverted and empty boxes and such as lie outside the frame, clips the rest to the frame.

    One box of that kind, let through, crashed whole camera processes elsewhere (Frigate PR #23475, cases R36). What is
    of no class in ``labels`` is left out uncounted, whatever its box.
    """
    found: list[Detection] = []
    invalid = 0
    wanted = rows[np.isin(rows[:, 5], list(labels)) & ~(rows[:, 4] < least_score)]
    ordered = wanted[np.argsort(-np.nan_to_num(wanted[:, 4], nan=-1.0), kind="stable")]
    for x1, y1, x2, y2, score, number in ordered.astype(float).tolist():
        box = (max(0.0, x1), max(0.0, y1), min(float(width), x2), min(float(height), y2))
        label = labels[int(number)]
        # A box with an infinite side says nothing about where somebody is.
        sound = all(map(math.isfinite, (x1, y1, x2, y2, score))) and box[2] - box[0] >= 1 and box[3] - box[1] >= 1
        if not sound or score > 1:
            invalid += 1
        elif all(label != other.label or iou(box, other.box) <= DUPLICATE_IOU for other in found):
            found.append(Detection(box, score, label))
    return CheckedBoxes(tuple(found), invalid)


def area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def intersection(a: Box, b: Box) -> float:
    """Shared area in square pixels."""
    return area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


def iou(a: Box, b: Box) -> float:
    """Intersection over union, 0 to 1."""
    shared = intersection(a, b)
    union = area(a) + area(b) - shared
    return shared / union if union > 0 else 0.0
