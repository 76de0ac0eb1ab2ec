"""Backgrounds nobody is in: drawn rooms, streets and textures, and patchworks of real ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import cv2
import numpy as np

from training.detector.people import Image

Rng = np.random.Generator


def colour(rng: Rng, low: int = 20, high: int = 235) -> tuple[int, int, int]:
    """Mostly greyish, as walls and streets are; at times strong."""
    grey = rng.integers(low, high)
    spread = 12 if rng.random() < 0.7 else 90
    b, g, r = np.clip(grey + rng.integers(-spread, spread + 1, 3), 0, 255)
    return int(b), int(g), int(r)


def clouds(rng: Rng, height: int, width: int, strength: float) -> Image:
    """Smooth noise of several scales around 128, for stains, grass, carpet and light."""
    total = np.zeros((height, width), np.float32)
    for scale in (4, 12, 40, 120):
        rows, columns = max(2, height // scale), max(2, width // scale)
        noise = rng.standard_normal((rows, columns)).astype(np.float32)
        total += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC) * rng.random()
    grey = np.clip(128 + strength * 60 * total, 0, 255).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def surface(rng: Rng, height: int, width: int) -> Image:
    """A wall, a floor, a lawn: one colour, with noise and often with bricks, tiles, boards or stripes."""
    image = np.full((height, width, 3), colour(rng), np.uint8)
    image = cv2.addWeighted(image, 1.0, clouds(rng, height, width, rng.uniform(0.1, 1.2)), 0.6, -0.6 * 128)
    kind, dark = rng.integers(0, 5), colour(rng, 10, 160)
    step = int(rng.integers(8, max(9, height // 3)))
    if kind == 1:
        for y in range(int(rng.integers(0, step)), height, step):
            cv2.line(image, (0, y), (width, y), dark, int(rng.integers(1, 3)))
            shift = int(rng.integers(0, step * 2))
            for x in range(shift, width, step * 2):
                cv2.line(image, (x, y), (x, y + step), dark, 1)
    elif kind == 2:
        slant = int(rng.integers(-width // 2, width // 2))
        for x in range(-width, width * 2, step):
            cv2.line(image, (x, height), (x + slant, 0), dark, int(rng.integers(1, 4)))
    return np.asarray(image, dtype=np.uint8)


def room(rng: Rng, height: int, width: int) -> Image:
    """A wall above, a floor below, and in between doors, windows, screens, posts, tables, plants and shelves."""
    horizon = int(height * rng.uniform(0.15, 0.75))
    image = surface(rng, height, width)
    image[horizon:] = surface(rng, height - horizon, width)
    for _ in range(int(rng.integers(2, 12))):
        furniture(rng, image, horizon)
    if rng.random() < 0.5:
        light = cv2.GaussianBlur(clouds(rng, height, width, 1.0), (0, 0), max(height, width) / 8)
        image = np.clip(image * (0.4 + light / 200.0), 0, 255).astype(np.uint8)
    return image


def furniture(rng: Rng, image: Image, horizon: int) -> None:
    """Draws one thing that isn't a person, at times as tall and narrow as one."""
    height, width = image.shape[:2]
    tall, wide = int(height * rng.uniform(0.05, 0.8)), int(width * rng.uniform(0.01, 0.4))
    x, foot = int(rng.integers(-wide, width)), int(np.clip(horizon + rng.integers(-tall, height), 0, height + tall))
    top, kind = foot - tall, rng.integers(0, 6)
    fill, line = colour(rng), colour(rng)
    if kind == 0:
        cv2.rectangle(image, (x, top), (x + wide, foot), fill, -1)
        cv2.rectangle(image, (x, top), (x + wide, foot), line, int(rng.integers(1, 4)))
    elif kind == 1:  # a post, at times with a head
        thin = max(2, wide // 8)
        cv2.line(image, (x, foot), (x, top), fill, thin)
        if rng.random() < 0.6:
            cv2.circle(image, (x, top), thin * int(rng.integers(1, 4)), line, -1)
    elif kind == 2:  # an upright blob: a bag, a bush, a bin, a coat on a hook
        axes = (max(2, min(wide, tall) // 3), max(2, tall // 2))
        cv2.ellipse(image, (x + wide // 2, (top + foot) // 2), axes, float(rng.uniform(-20, 20)), 0, 360, fill, -1)
    elif kind == 3:  # a table or a tripod
        cv2.line(image, (x, top), (x + wide, top), fill, max(2, tall // 15))
        for leg in (x, x + wide // 2, x + wide):
            cv2.line(image, (x + wide // 2, top), (leg, foot), fill, max(1, tall // 30))
    elif kind == 4:  # a shelf
        for y in range(top, foot, max(6, tall // 5)):
            for sx in range(x, x + wide, max(4, wide // 8)):
                cv2.rectangle(image, (sx, y), (sx + max(3, wide // 10), y + max(4, tall // 7)), colour(rng), -1)
    else:
        corners = rng.integers(0, [max(wide, 2), max(tall, 2)], (int(rng.integers(3, 7)), 2))
        points = np.add(corners, (x, top))
        cv2.fillPoly(image, [cv2.convexHull(points.astype(np.int32))], fill)


def patchwork(rng: Rng, height: int, width: int, pieces: Sequence[Image]) -> Image:
    """One real background over the whole picture, or a few side by side, as the corner of a street."""
    count = 1 if rng.random() < 0.7 else int(rng.integers(2, 4))
    edges = np.linspace(0, width, count + 1).astype(int)
    image = np.empty((height, width, 3), np.uint8)
    for left, right in itertools.pairwise(edges):
        piece = pieces[int(rng.integers(len(pieces)))]
        if rng.random() < 0.5:
            piece = piece[:, ::-1]
        share = rng.uniform(0.35, 1.0)
        rows, columns = max(16, int(piece.shape[0] * share)), max(16, int(piece.shape[1] * share))
        y, x = rng.integers(0, piece.shape[0] - rows + 1), rng.integers(0, piece.shape[1] - columns + 1)
        part = np.ascontiguousarray(piece[y : y + rows, x : x + columns])
        image[:, left:right] = cv2.resize(part, (int(right - left), height), interpolation=cv2.INTER_AREA)
    return image


def background(rng: Rng, height: int, width: int, streets: Sequence[Image], frames: Sequence[Image]) -> Image:
    """A picture without people: a street, a frame of a video nobody is in, or a drawn room."""
    choice = rng.random()
    if choice < 0.45 and streets:
        return patchwork(rng, height, width, streets)
    if choice < 0.6 and frames:
        return patchwork(rng, height, width, frames)
    if choice < 0.9:
        return room(rng, height, width)
    return surface(rng, height, width)
