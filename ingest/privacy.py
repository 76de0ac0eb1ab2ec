"""Making heads or whole people unrecognisable in everything that leaves ingest as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable

import cv2
import numpy as np

from ingest.frame import Image
from pipeline.config import Blur
from pipeline.messages import Box

HEAD_SHARE = 0.25
"""Of a standing person's box, from the top."""
HEAD_OF_WIDTH = 0.6
"""At least so much of the box's width is head: of somebody cut off at the waist the top quarter is not enough."""
MARGIN = 0.1
"""Beyond the box on each side, as a share of its sides: boxes are a little off, and the main stream's picture is of a
moment before or after."""
CELLS = {"head": (4, 4), "person": (4, 8)}
"""A region keeps so many colours across and down, and nothing else."""
LEVELS = 16
"""To so many steps a channel: what is left of a head is below 4 x 4 x 3 x 4 = 192 bits."""


def regions_of(blur: Blur, boxes: Iterable[Box]) -> tuple[Box, ...]:
    """What is to be made unrecognisable of the people in these boxes; nothing for ``none``."""
    match blur:
        case "none":
            return ()
        case "head":
            return tuple(_grown(head_of(box)) for box in boxes)
        case "person":
            return tuple(_grown(box) for box in boxes)


def head_of(box: Box) -> Box:
    """The top quarter, and more of a box that is not slim."""
    x1, y1, x2, y2 = box
    high = max(HEAD_SHARE * (y2 - y1), HEAD_OF_WIDTH * (x2 - x1))
    return x1, y1, x2, min(y2, y1 + high)


def obscure(image: Image, regions: Iterable[Box], blur: Blur) -> None:
    """Overwrites the regions in place: a few averaged cells with coarse colours, melted into one another.

    It can't be undone: every picture with the same cells gives the same result, and no pixel of the region is left.
    """
    across, down = CELLS.get(blur, (1, 1))
    for x1, y1, x2, y2 in regions:
        left, top = max(0, math.floor(x1)), max(0, math.floor(y1))
        right, bottom = min(image.shape[1], math.ceil(x2)), min(image.shape[0], math.ceil(y2))
        if right <= left or bottom <= top:
            continue
        part = image[top:bottom, left:right]
        size = (min(across, right - left), min(down, bottom - top))
        cells = cv2.resize(part, size, interpolation=cv2.INTER_AREA)
        step = 256 // LEVELS
        coarse = (np.asarray(cells, dtype=np.uint8) // step) * step + step // 2
        image[top:bottom, left:right] = cv2.resize(
            coarse.astype(np.uint8), (right - left, bottom - top), interpolation=cv2.INTER_LINEAR
        )


def _grown(box: Box) -> Box:
    x, y = MARGIN * (box[2] - box[0]), MARGIN * (box[3] - box[1])
    return box[0] - x, box[1] - y, box[2] + x, box[3] + y
