"""People cut out of street photographs by their masks, and the streets without them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
"""Height x width x 3, BGR."""

LEAST_MASK_SHARE = 0.02
"""Smaller masks are labelling faults."""


@dataclass(frozen=True, slots=True, eq=False)
class CutOut:
    """A person without a background.

    Attributes:
        image: BGR, trimmed to the person.
        alpha: of the same height and width, 0 to 255.
    """

    image: Image
    alpha: NDArray[np.uint8]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.image.shape[0], self.image.shape[1]


def mask_of(folder: Path, number: str) -> NDArray[np.bool_]:
    """Which pixels of photograph ``number`` belong to its person (every label but 0, ``null``)."""
    return np.asarray(garments_of(folder, number) > 0)


def garments_of(folder: Path, number: str) -> NDArray[np.uint8]:
    """Index into ``labels.json`` of the garment at each pixel of photograph ``number``. Raises FileNotFoundError."""
    path = folder / "masks" / f"{number}.png"
    labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if labels is None:
        raise FileNotFoundError(path)
    return np.asarray(labels, dtype=np.uint8)


def photo_of(folder: Path, number: str) -> Image:
    """The photograph. Raises FileNotFoundError."""
    path = folder / "photos" / f"{number}.jpg"
    image = cv2.imread(str(path))
    if image is None:
        raise FileNotFoundError(path)
    return np.asarray(image, dtype=np.uint8)


def cut_out(image: Image, mask: NDArray[np.bool_]) -> CutOut | None:
    """The person with an edge that is drawn in by one pixel and softened; None for a mask that is too small."""
    if mask.mean() < LEAST_MASK_SHARE:
        return None
    solid = cv2.morphologyEx(mask.astype(np.uint8) * 255, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    _, parts, stats, _ = cv2.connectedComponentsWithStats(solid)
    largest = 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))
    # Bags and feet that the mask cuts off stay; crumbs go.
    keep = [i for i in range(1, len(stats)) if stats[i, cv2.CC_STAT_AREA] > 0.01 * stats[largest, cv2.CC_STAT_AREA]]
    solid = np.where(np.isin(parts, keep), 255, 0).astype(np.uint8)
    alpha = cv2.GaussianBlur(cv2.erode(solid, np.ones((3, 3), np.uint8)), (3, 3), 0)
    rows, columns = np.where(alpha > 127)
    if not len(rows):
        return None
    window = (slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1))
    return CutOut(np.ascontiguousarray(image[window]), np.ascontiguousarray(alpha[window]))


def street_of(image: Image, mask: NDArray[np.bool_]) -> list[Image]:
    """What is to the left and to the right of the person, where that is wide enough to be a background."""
    columns = np.where(mask.any(axis=0))[0]
    if not len(columns):
        return []
    left, right, margin = int(columns.min()), int(columns.max()), 6
    sides = (image[:, : max(0, left - margin)], image[:, right + margin :])
    return [np.ascontiguousarray(side) for side in sides if side.shape[1] >= 64]
