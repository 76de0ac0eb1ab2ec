"""Polygons of the configuration, laid over a picture."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.frame import Image
from pipeline.config import Polygon

_SHIFT = 4
"""OpenCV takes corners in sixteenths of a pixel."""


class PrivacyMasks:
    """What is black before a frame leaves the reader. For one thread at a time."""

    def __init__(self, polygons: Sequence[Polygon]) -> None:
        self._polygons = tuple(polygons)
        self._size = (0, 0)
        self._corners: list[NDArray[np.int32]] = []

    def __bool__(self) -> bool:
        return bool(self._polygons)

    def black_out(self, image: Image) -> None:
        """In place; a pixel that a polygon only touches is black, too."""
        if not self._polygons:
            return
        height, width = image.shape[:2]
        if self._size != (width, height):
            self._size = (width, height)
            self._corners = [_corners(polygon, width, height) for polygon in self._polygons]
        for corners in self._corners:
            cv2.fillPoly(image, [corners], (0, 0, 0), cv2.LINE_8, _SHIFT)
            # fillPoly alone misses pixels by a tenth of one.
            cv2.polylines(image, [corners], True, (0, 0, 0), 2, cv2.LINE_8, _SHIFT)


def covered_cells(polygons: Sequence[Polygon], width: int, height: int) -> NDArray[np.bool_]:
    """Height x width: which cells of a grid over the picture the polygons touch."""
    cells = np.zeros((height, width), dtype=np.uint8)
    for polygon in polygons:
        cv2.fillPoly(cells, [_corners(polygon, width, height)], 1, cv2.LINE_8, _SHIFT)  # type: ignore[call-overload]
    return cells.astype(bool)


def contains(polygon: Polygon, x: float, y: float) -> bool:
    """Whether the point lies in the polygon: even-odd rule, a ray to the right (W. R. Franklin's pnpoly)."""
    inside = False
    previous_x, previous_y = polygon[-1]
    for corner_x, corner_y in polygon:
        if (corner_y > y) != (previous_y > y):
            crossing = (previous_x - corner_x) * (y - corner_y) / (previous_y - corner_y) + corner_x
            inside ^= x < crossing
        previous_x, previous_y = corner_x, corner_y
    return inside


def _corners(polygon: Polygon, width: int, height: int) -> NDArray[np.int32]:
    """In OpenCV's fixed point, in which whole numbers are the pixels' centres."""
    points = np.asarray(polygon) * (width, height) - 0.5
    return np.round(points * (1 << _SHIFT)).astype(np.int32)
