"""Pictures with people in them whose boxes are known exactly, because they were pasted there (copy-paste,
https://arxiv.org/abs/2012.07177), made to look like a camera's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from training.detector.people import CutOut, Image
from training.detector.poses import from_above, leaning, reaching
from training.detector.scenery import Rng, background, furniture
from training.detector.upright import upright

LEAST_HEIGHT = 16
"""Pixels; smaller people are too small to be asked for."""
LEAST_VISIBLE = 0.2
"""Share of a person that is neither covered nor outside; with less there is no label."""


@dataclass(frozen=True, slots=True)
class Composed:
    """A picture and its people.

    Attributes:
        image: BGR.
        boxes: x1, y1, x2, y2 in pixels around what of each person lies within the picture.
    """

    image: Image
    boxes: list[tuple[float, float, float, float]]


@dataclass(slots=True)
class _Canvas:
    image: Image
    owner: NDArray[np.int16]
    """Per pixel: the number of the person that is seen there, 0 for none."""
    boxes: list[tuple[int, int, int, int]] = field(default_factory=list)
    areas: list[int] = field(default_factory=list)


def compose(
    rng: Rng, size: int, people: Sequence[CutOut], streets: Sequence[Image], frames: Sequence[Image]
) -> Composed:
    """A square picture of ``size`` pixels with none to about a dozen people."""
    height = size
    canvas = _Canvas(background(rng, height, size, streets, frames), np.zeros((height, size), np.int16))
    horizon, nearest = rng.uniform(-0.2, 0.5) * height, rng.uniform(0.3, 1.5) * height
    count = 0 if rng.random() < 0.1 else 1 + int(rng.geometric(0.3)) - 1
    for place in sorted(_places(rng, size, horizon, nearest, min(max(count, 0), 12)), key=lambda place: place.foot):
        if rng.random() < 0.25 and streets:
            _paste(rng, canvas, no_one(rng, streets), _place(rng, height, horizon, nearest), labelled=False)
        if rng.random() < 0.25:
            _stand(rng, canvas, _place(rng, height, horizon, nearest))
        _paste(rng, canvas, people[int(rng.integers(len(people)))], place)
        if rng.random() < 0.2:
            _occlude(rng, canvas, int(place.foot))
    boxes = [box for number in range(1, len(canvas.boxes) + 1) if (box := _seen(canvas, number)) is not None]
    return Composed(as_seen_by_a_camera(rng, canvas.image), boxes)


def _seen(canvas: _Canvas, number: int) -> tuple[float, float, float, float] | None:
    """Around what is to be seen of a person, as real pictures are labelled: what others hide is no part of it. None for
    too little of them."""
    left, top, right, bottom = canvas.boxes[number - 1]
    ys, xs = np.where(canvas.owner[top:bottom, left:right] == number)
    if len(ys) < LEAST_VISIBLE * canvas.areas[number - 1] or not len(ys):
        return None
    box = (left + int(xs.min()), top + int(ys.min()), left + int(xs.max()) + 1, top + int(ys.max()) + 1)
    if box[3] - box[1] < LEAST_HEIGHT:
        return None
    return float(box[0]), float(box[1]), float(box[2]), float(box[3])


@dataclass(frozen=True, slots=True)
class _Place:
    """Of one person, in pixels: height, where the feet are, and the middle."""

    tall: float
    foot: float
    middle: float


def _places(rng: Rng, size: int, horizon: float, nearest: float, count: int) -> list[_Place]:
    """Some of them go together: side by side, as tall, one in front of a part of the other."""
    places: list[_Place] = []
    for _ in range(count):
        if places and rng.random() < 0.3:
            by = places[-1]
            aside = by.tall * float(rng.uniform(0.12, 0.4)) * float(rng.choice([-1, 1]))
            foot = by.foot + by.tall * float(rng.uniform(-0.04, 0.04))
            places.append(_Place(by.tall * float(rng.uniform(0.88, 1.12)), foot, by.middle + aside))
        else:
            places.append(_place(rng, size, horizon, nearest))
    return places


def _place(rng: Rng, size: int, horizon: float, nearest: float) -> _Place:
    """Mostly by perspective (who stands lower is nearer and larger), or anything, or so near that the picture ends at
    the knees, the waist or the shoulders."""
    middle = float(rng.uniform(0, size))
    if rng.random() < 0.14:
        tall = size * float(np.exp(rng.uniform(np.log(1.1), np.log(3.5))))
        return _Place(tall, float(rng.uniform(-0.02, 0.45) * size + tall), middle)
    if rng.random() < 0.3:
        tall = size * float(np.exp(rng.uniform(np.log(0.06), np.log(1.6))))
        return _Place(tall, float(rng.uniform(0.2 * size, size + 0.6 * tall)), middle)
    foot = rng.uniform(max(0.1 * size, horizon + 0.05 * size), size * 1.25)
    depth = (foot - horizon) / (size - horizon)
    return _Place(max(LEAST_HEIGHT, float(nearest * depth * rng.uniform(0.85, 1.15))), float(foot), middle)


def no_one(rng: Rng, streets: Sequence[Image]) -> CutOut:
    """A piece of a street in an outline that isn't a person's, so that pasted edges alone say nothing."""
    street = streets[int(rng.integers(len(streets)))]
    rows, columns = street.shape[:2]
    high = int(rng.integers(rows // 4, rows + 1))
    wide = int(np.clip(high * rng.uniform(0.2, 0.9), 8, columns))
    y, x = int(rng.integers(0, rows - high + 1)), int(rng.integers(0, columns - wide + 1))
    outline = np.zeros((high, wide), np.uint8)
    kind = rng.integers(0, 3)
    if kind == 0:
        cv2.ellipse(outline, (wide // 2, high // 2), (wide // 2, high // 2), 0, 0, 360, 255, -1)
    elif kind == 1:
        corners = rng.integers(0, [wide, high], (int(rng.integers(4, 9)), 2))
        cv2.fillPoly(outline, [cv2.convexHull(corners.astype(np.int32))], 255)
    else:
        rough = cv2.resize(rng.random((7, 4), dtype=np.float32), (wide, high), interpolation=cv2.INTER_CUBIC)
        outline[rough > 0.4] = 255
    alpha = cv2.GaussianBlur(outline, (3, 3), 0)
    return CutOut(np.ascontiguousarray(street[y : y + high, x : x + wide]), np.asarray(alpha, dtype=np.uint8))


def _paste(rng: Rng, canvas: _Canvas, person: CutOut, place: _Place, labelled: bool = True) -> None:
    """``labelled``: whether it is somebody; what isn't only hides people."""
    tall, foot = place.tall, place.foot
    if labelled and rng.random() < 0.15:
        person = reaching(rng, person)
    if rng.random() < 0.35:
        person = from_above(rng, person)
    image, alpha = person.image, person.alpha
    if rng.random() < 0.5:
        image, alpha = image[:, ::-1], alpha[:, ::-1]
    stretch = rng.uniform(0.85, 1.2)
    if rng.random() < 0.12:  # sitting, or behind a table
        rows = int(image.shape[0] * rng.uniform(0.35, 0.7))
        image, alpha, tall = image[:rows], alpha[:rows], tall * rows / image.shape[0]
    high = max(4, int(tall))
    wide = max(2, int(high * image.shape[1] / image.shape[0] * stretch))
    how = cv2.INTER_AREA if high < image.shape[0] else cv2.INTER_LINEAR
    image = cv2.resize(np.ascontiguousarray(image), (wide, high), interpolation=how)
    alpha = cv2.resize(np.ascontiguousarray(alpha), (wide, high), interpolation=how)
    if rng.random() < 0.4:
        lean = 9 if rng.random() < 0.6 else 38
        image, alpha = leaning(image, alpha, float(rng.uniform(-lean, lean)))
        wide = image.shape[1]
    height, width = canvas.image.shape[:2]
    x, y = int(place.middle) - wide // 2, int(foot) - high
    if rng.random() < 0.15:  # coming or going: a side of the picture cuts most of them off
        outside = int(wide * rng.uniform(0.35, 0.8))
        x = -outside if rng.random() < 0.5 else width - wide + outside
    x1, y1, x2, y2 = max(0, x), max(0, y), min(width, x + wide), min(height, y + high)
    if x2 - x1 < 4 or y2 - y1 < 8 or -y > 0.5 * high:  # legs alone are no person to a camera's owner
        return
    seen = (slice(y1 - y, y2 - y), slice(x1 - x, x2 - x))
    weight = alpha[seen].astype(np.float32)[:, :, None] / 255.0
    under = canvas.image[y1:y2, x1:x2]
    look = dressed_for(rng, image[seen], under)
    if rng.random() < 0.5:
        shadow(rng, canvas.image, x + wide // 2, int(foot), wide)
    canvas.image[y1:y2, x1:x2] = (look * weight + canvas.image[y1:y2, x1:x2] * (1 - weight)).astype(np.uint8)
    body = alpha[seen] > 127
    ys, xs = np.where(body)
    if not len(ys):
        return
    canvas.owner[y1:y2, x1:x2][body] = len(canvas.boxes) + 1 if labelled else 0
    if not labelled:
        return
    canvas.boxes.append((x1 + int(xs.min()), y1 + int(ys.min()), x1 + int(xs.max()) + 1, y1 + int(ys.max()) + 1))
    # Of the rows in the picture: somebody whom the lower edge cuts off is near, not hidden.
    canvas.areas.append(int(np.count_nonzero(alpha[y1 - y : y2 - y] > 127)))


def dressed_for(rng: Rng, image: Image, under: Image) -> NDArray[np.float32]:
    """The person in other light and colours, drawn towards the brightness of the place."""
    look = image.astype(np.float32)
    if rng.random() < 0.4:
        hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV).astype(np.int16)
        hsv[..., 0] = (hsv[..., 0] + int(rng.integers(0, 180))) % 180
        hsv[..., 1] = np.clip(hsv[..., 1] * rng.uniform(0.1, 1.5), 0, 255)
        look = cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2BGR).astype(np.float32)
    mean, there = float(look.mean()), float(under.mean())
    pull = rng.uniform(0, 0.8)
    gain = (1 - pull) + pull * (there + 10) / (mean + 10)
    return np.asarray(np.clip(look * np.clip(gain * rng.uniform(0.6, 1.3), 0.15, 2.0), 0, 255), dtype=np.float32)


def shadow(rng: Rng, image: Image, x: int, foot: int, wide: int) -> None:
    """A soft dark ellipse at the feet."""
    layer = np.zeros(image.shape[:2], np.uint8)
    reach = (max(2, int(wide * rng.uniform(0.4, 1.2))), max(1, int(wide * rng.uniform(0.08, 0.25))))
    cv2.ellipse(layer, (x, foot), reach, float(rng.uniform(-25, 25)), 0, 360, 255, -1)
    layer = cv2.blur(layer, (max(3, wide // 6), max(3, wide // 6)))
    image[:] = (image * (1 - layer[:, :, None] / 255.0 * rng.uniform(0.2, 0.6))).astype(np.uint8)


def _stand(rng: Rng, canvas: _Canvas, place: _Place) -> None:
    """Puts a narrow thing where somebody might stand, about as tall as they would be."""
    tall, x, foot = max(4, int(place.tall * rng.uniform(0.3, 1.1))), int(place.middle), int(place.foot)
    if rng.random() < 0.5:
        shadow(rng, canvas.image, x, foot, max(4, tall // 4))
    before = canvas.image.copy()
    upright(rng, canvas.image, x, foot, tall)
    canvas.owner[(before != canvas.image).any(axis=2)] = 0


def _occlude(rng: Rng, canvas: _Canvas, foot: int) -> None:
    """Something in front, which hides people; what changed belongs to nobody."""
    before = canvas.image.copy()
    furniture(rng, canvas.image, foot)
    canvas.owner[(before != canvas.image).any(axis=2)] = 0


def as_seen_by_a_camera(rng: Rng, image: Image) -> Image:
    """Blur, poor light, infrared, noise, low resolution and compression, each at times."""
    height, width = image.shape[:2]
    out = image
    if rng.random() < 0.25:
        out = cv2.GaussianBlur(out, (0, 0), float(rng.uniform(0.4, 1.6)))
    if rng.random() < 0.1:
        length = int(rng.integers(3, 9))
        out = cv2.filter2D(out, -1, np.eye(length, dtype=np.float32)[:: int(rng.choice([-1, 1]))] / length)
    if rng.random() < 0.3:
        share = rng.uniform(0.4, 0.9)
        small = cv2.resize(out, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)
        out = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    tone: NDArray[np.floating] = out.astype(np.float32)
    if rng.random() < 0.5:
        tone = 255 * np.power(tone / 255, rng.uniform(0.6, 1.8)) * rng.uniform(0.5, 1.1) + rng.uniform(-10, 25)
    if rng.random() < 0.3:
        tone = tone * rng.uniform(0.8, 1.2, 3).astype(np.float32)
    if rng.random() < 0.12:
        tone = np.repeat(tone.mean(axis=2, keepdims=True), 3, axis=2)
    if rng.random() < 0.4:
        tone = tone + rng.standard_normal(tone.shape, dtype=np.float32) * float(rng.uniform(1, 14))
    out = np.clip(tone, 0, 255).astype(np.uint8)
    if rng.random() < 0.7:
        out = compressed(out, int(rng.integers(25, 95)))
    return np.asarray(out, dtype=np.uint8)


def compressed(image: Image, quality: int) -> Image:
    """As JPEG of that quality leaves it."""
    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), dtype=np.uint8)
