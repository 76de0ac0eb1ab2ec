"""The clearest picture of a person so far, the first and the last one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import cv2
import numpy as np

from ingest.crop import crop_window, cut
from ingest.detection import Detection, area, intersection
from ingest.frame import Frame, Image
from ingest.picture_hash import bits_apart, picture_hash
from ingest.privacy import regions_of
from pipeline.config import Blur, CropConfig
from pipeline.messages import Box

EDGE_TOLERANCE = 0.015
"""A box so near to the frame's edge (share of the side, at least two pixels) counts as cut off: boxes of people without
feet stop 3 to 4 pixels short of it in pictures 270 high, 6 in pictures 432 high (measured)."""
_SHARP_SIDE = 160
_HALF_SHARP = 150.0
"""Variance of the Laplacian at which the sharpness is one half; sharp people have 500 to 2000 at this scale."""
_HALF_SIZE = 96.0
"""Square root of the area in pixels at which the size is one half."""


FIRST_S = 1.0
"""The best picture of so long counts as the first one; at the very first somebody is mostly half in view."""
LAST_EVERY_S = 1.0
"""The last picture is renewed no more often."""
USABLE = 0.6
"""First and last pictures have this share of the best one's quality at least: who leaves is half out of view."""
ALIKE_SHARPNESS = 0.2
ALIKE_AREA = 1.6
"""Two pictures that show the same are not alike when one is so much sharper, or has so many times the pixels."""


@dataclass(frozen=True, slots=True)
class View:
    """A person on a frame: their detection, and everybody's boxes there, for what hides whom and for privacy.

    Attributes:
        others: boxes of the other people.
        blur: what is made unrecognisable, of all ``hidden``.
        hidden: boxes of everybody who is or may be on the frame.
    """

    frame: Frame
    detection: Detection
    others: tuple[Box, ...] = ()
    blur: Blur = "none"
    hidden: tuple[Box, ...] = ()

    def on(self, detail: Frame) -> View:
        """The same moment on a larger picture of it."""
        return View(
            detail,
            replace(self.detection, box=seen_on(detail, self.frame, self.detection.box)),
            tuple(seen_on(detail, self.frame, box) for box in self.others),
            self.blur,
            tuple(seen_on(detail, self.frame, box) for box in self.hidden),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """A picture of a person: already cut out and scaled, so that it holds little memory. All of one very frame.

    ``hash`` is the picture's :func:`~ingest.picture_hash.picture_hash`, ``sharpness`` as for the quality.
    """

    picture: Image
    quality: float
    sharpness: float
    hash: int
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


def look_alike(a: Shot, b: Shot, same_bits: int) -> bool:
    """Whether the second picture tells nothing that the first doesn't: the same view, as sharp and as large."""
    if bits_apart(a.hash, b.hash) > same_bits or abs(a.sharpness - b.sharpness) > ALIKE_SHARPNESS:
        return False
    smaller, larger = sorted((_pixels(a), _pixels(b)))
    return larger <= ALIKE_AREA * smaller


class BestShot:
    """Keeps the best shot of one track, and the first and the last one: three pictures, however long it takes."""

    def __init__(self, config: CropConfig) -> None:
        self._config = config
        self.best: Shot | None = None
        self.first: Shot | None = None
        self.last: Shot | None = None
        self._began = 0.0
        self._renewed = 0.0

    def offer(self, view: View) -> None:
        """Looks whether this is a picture to keep. Frames with damage never come here: the reader leaves them out."""
        frame, detection = view.frame, view.detection
        window = crop_window(detection.box, frame.width, frame.height, self._config)
        if window is None:
            return
        sharp = sharpness(frame.image, detection.box)
        quality = quality_of(frame, detection, view.others, sharp)
        is_best = self.best is None or quality > self.best.quality
        if self.first is None:
            self._began = frame.monotonic
        is_first = self.first is None or (quality > self.first.quality and frame.monotonic - self._began < FIRST_S)
        is_last = self.last is None or frame.monotonic - self._renewed >= LAST_EVERY_S
        is_last = is_last and (self.best is None or quality >= USABLE * self.best.quality)
        if not (is_best or is_first or is_last):
            return
        picture = cut(frame.image, window, self._config.max_pixels, regions_of(view.blur, view.hidden), view.blur)
        shot = Shot(
            picture,
            quality,
            sharp,
            picture_hash(picture),
            frame.time,
            frame.number,
            detection.box,
            detection.score,
            frame.width,
            frame.height,
        )
        self.best = shot if is_best else self.best
        self.first = shot if is_first else self.first
        if is_last:
            self.last, self._renewed = shot, frame.monotonic

    def begin_again(self) -> None:
        """From now on the best is looked for anew; the first one stays."""
        self.best = None

    def around(self, best: Shot) -> tuple[Shot, ...]:
        """First and last picture, oldest first, as far as they are usable and show something else than the best one."""
        chosen: list[Shot] = []
        for shot in (self.first, self.last):
            if shot is None or shot.quality < USABLE * best.quality:
                continue
            if all(not look_alike(shot, other, self._config.same_bits) for other in (best, *chosen)):
                chosen.append(shot)
        return tuple(chosen)


def quality_of(frame: Frame, detection: Detection, others: Iterable[Box], sharp: float | None = None) -> float:
    """0 to 1: how large, sharp and certain the person is; less when cut by the frame's edge or covered by another.

    ``sharp`` is the sharpness if it is known already.
    """
    side = math.sqrt(area(detection.box))
    sharp = sharpness(frame.image, detection.box) if sharp is None else sharp
    clear = 0.35 * side / (side + _HALF_SIZE) + 0.35 * sharp + 0.3 * detection.score
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


def _pixels(shot: Shot) -> int:
    return int(shot.picture.shape[0] * shot.picture.shape[1])
