"""Sections of street photographs, in which the picture's edge cuts somebody off, with all that is really around them.

A person's mask says where the box around what is left of them ends, which a box around the whole of them can't.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from training.detector.compose import as_seen_by_a_camera
from training.detector.people import Image
from training.detector.scenery import Rng

LEAST_LEFT = 0.12
"""Share of a person's mask from which what is left has a box."""
LEAST_SIDE = 0.05
"""Of the section's side; less is a sliver."""
Box = tuple[float, float, float, float]


def section(rng: Rng, image: Image, mask: NDArray[np.bool_], size: int) -> tuple[Image, list[Box]] | None:
    """A section of a photograph with one person in it, ``size`` pixels wide, in a camera's proportions; some lean.

    None where so little of the person is left that nobody could say whether there is one.
    """
    if rng.random() < 0.5:
        image, mask = _turned(rng, image, mask)
    rows, columns = mask.shape
    ys, xs = np.where(mask)
    if not len(ys):
        return None
    wide = int(columns * rng.uniform(0.55, 1.0))
    high = min(rows, int(wide * rng.choice([9 / 16, 3 / 4, 1.0])))
    x, y = _corner(rng, (int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1), wide, high, columns, rows)
    left = mask[y : y + high, x : x + wide]
    seen = image[y : y + high, x : x + wide]
    scale = size / wide
    picture = cv2.resize(np.ascontiguousarray(seen), (size, int(high * scale)), interpolation=cv2.INTER_LINEAR)
    picture = as_seen_by_a_camera(rng, np.asarray(picture, dtype=np.uint8))
    ys, xs = np.where(left)
    if not len(ys):
        return picture, []
    box = (float(xs.min()), float(ys.min()), float(xs.max()) + 1, float(ys.max()) + 1)
    if (
        len(ys) < LEAST_LEFT * np.count_nonzero(mask)
        or min((box[2] - box[0]) / wide, (box[3] - box[1]) / high) < LEAST_SIDE
    ):
        return None
    return picture, [(box[0] * scale, box[1] * scale, box[2] * scale, box[3] * scale)]


def _corner(
    rng: Rng, person: tuple[int, int, int, int], wide: int, high: int, columns: int, rows: int
) -> tuple[int, int]:
    """Where the section begins: heads and shoulders, a side that cuts the person in half, or anywhere."""
    x1, y1, x2, _ = person
    kind = rng.random()
    y = int(rng.integers(0, rows - high + 1))
    if kind < 0.4:
        x, y = int(rng.integers(0, columns - wide + 1)), int(y1 + rng.uniform(-0.5, 0.25) * high)
    elif kind < 0.8:
        edge = x1 + (x2 - x1) * rng.uniform(0.25, 0.75)
        x = int(edge) if rng.random() < 0.5 else int(edge) - wide
    else:
        x = int(rng.integers(0, columns - wide + 1))
    return int(np.clip(x, 0, columns - wide)), int(np.clip(y, 0, rows - high))


def _turned(rng: Rng, image: Image, mask: NDArray[np.bool_]) -> tuple[Image, NDArray[np.bool_]]:
    rows, columns = mask.shape
    turn = cv2.getRotationMatrix2D((columns / 2, rows / 2), float(rng.uniform(-35, 35)), rng.uniform(1.0, 1.2))
    upright = mask.astype(np.uint8)
    turned = cv2.warpAffine(image, turn, (columns, rows), borderMode=cv2.BORDER_REPLICATE)
    seen = cv2.warpAffine(upright, turn, (columns, rows), flags=cv2.INTER_NEAREST)
    return np.asarray(turned, dtype=np.uint8), np.asarray(seen > 0)


def alone(boxes: Sequence[Box], mask: NDArray[np.bool_]) -> bool:
    """Whether the mask's person is the only one that the teacher saw at all."""
    if len(boxes) != 1:
        return False
    x1, y1, x2, y2 = (int(value) for value in boxes[0])
    inside = np.count_nonzero(mask[max(0, y1) : y2, max(0, x1) : x2])
    return bool(inside >= 0.9 * np.count_nonzero(mask))
