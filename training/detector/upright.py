"""Draws narrow things that stand where people might: a detector must not take them for somebody far away."""

from __future__ import annotations

import cv2
import numpy as np

from training.detector.people import Image
from training.detector.scenery import Rng, colour


def upright(rng: Rng, image: Image, x: int, foot: int, tall: int) -> None:
    """One thing ``tall`` pixels high that stands at ``(x, foot)``, at times a second one close by."""
    things = (_tripod, _sign, _folding_sign, _ladder, _bollard, _plant)
    # Legs with a gap between them are what is most easily taken for somebody.
    things[int(rng.choice(len(things), p=(0.35, 0.15, 0.15, 0.1, 0.15, 0.1)))](rng, image, x, foot, tall)
    if rng.random() < 0.3:
        near = x + int(tall * rng.uniform(-0.3, 0.3))
        things[int(rng.integers(1, len(things)))](rng, image, near, foot, max(4, int(tall * rng.uniform(0.2, 0.5))))


def _thick(rng: Rng, tall: int) -> int:
    return max(1, int(tall * rng.uniform(0.01, 0.05)))


def _tripod(rng: Rng, image: Image, x: int, foot: int, tall: int) -> None:
    """A column, three legs, and on top a camera, a lamp or nothing."""
    top, spread = foot - tall, tall * rng.uniform(0.12, 0.35)
    joint, paint, thick = top + int(tall * rng.uniform(0.1, 0.5)), colour(rng, 10, 200), _thick(rng, tall)
    cv2.line(image, (x, top), (x, joint + int(tall * rng.uniform(0, 0.25))), paint, thick, cv2.LINE_AA)
    for aside, nearer in ((-1.0, 0.0), (1.0, 0.0), (rng.uniform(-0.4, 0.4), rng.uniform(-0.1, 0.05))):
        end = (x + int(aside * spread), foot + int(nearer * tall))
        cv2.line(image, (x, joint), end, paint, max(1, int(thick * rng.uniform(0.6, 1.2))), cv2.LINE_AA)
    if rng.random() < 0.7:
        wide, high = int(tall * rng.uniform(0.03, 0.1)), int(tall * rng.uniform(0.03, 0.12))
        cv2.rectangle(image, (x - wide, top - high), (x + wide, top), colour(rng), -1)


def _sign(rng: Rng, image: Image, x: int, foot: int, tall: int) -> None:
    """A board with lines of writing on a pole."""
    top = foot - tall
    cv2.line(image, (x, foot), (x, top), colour(rng), _thick(rng, tall), cv2.LINE_AA)
    wide, high = int(tall * rng.uniform(0.06, 0.22)), int(tall * rng.uniform(0.12, 0.45))
    y = top + int(tall * rng.uniform(0, 0.3))
    x += int(rng.uniform(-0.5, 0.5) * wide)
    cv2.rectangle(image, (x - wide, y), (x + wide, y + high), colour(rng), -1)
    written = colour(rng)
    for row in range(y + high // 6, y + high, max(3, high // 5)):
        cv2.line(image, (x - wide * 2 // 3, row), (x + int(wide * rng.uniform(0, 0.7)), row), written, 1)


def _folding_sign(rng: Rng, image: Image, x: int, foot: int, tall: int) -> None:
    """Wide below and narrow above, at times with bands: a board on the ground or a cone."""
    below, above = tall * rng.uniform(0.15, 0.35), tall * rng.uniform(0.02, 0.15)

    def band(first: float, last: float, paint: tuple[int, int, int]) -> None:
        """Between two heights; 0 is the top."""
        corners = [
            (x + side * (above + share * (below - above)), foot - tall * (1 - share))
            for side, share in ((-1, first), (1, first), (1, last), (-1, last))
        ]
        cv2.fillPoly(image, [np.array(corners, np.int32)], paint)

    paint, other = colour(rng), colour(rng)
    band(0.0, 1.0, paint)
    for start in np.linspace(0.2, 0.9, int(rng.integers(0, 4)), endpoint=False):
        band(float(start), float(start) + 0.12, other)


def _ladder(rng: Rng, image: Image, x: int, foot: int, tall: int) -> None:
    """Two rails and rungs, upright or leaning."""
    wide, lean, paint = tall * rng.uniform(0.06, 0.15), tall * rng.uniform(-0.2, 0.2), colour(rng)
    narrower, thick = rng.uniform(0.3, 1.0), _thick(rng, tall)

    def at(side: int, share: float) -> tuple[int, int]:
        """On a rail; 0 is the foot."""
        reach = side * wide * (1 - share * (1 - narrower))
        return int(x + share * lean + reach), int(foot - share * tall)

    for side in (-1, 1):
        cv2.line(image, at(side, 0.0), at(side, 1.0), paint, thick, cv2.LINE_AA)
    for share in np.linspace(0.08, 0.95, int(rng.integers(3, 10))):
        cv2.line(image, at(-1, float(share)), at(1, float(share)), paint, max(1, thick // 2), cv2.LINE_AA)


def _bollard(rng: Rng, image: Image, x: int, foot: int, tall: int) -> None:
    """A post with a round head and bands, or a bin."""
    wide, paint = max(1, int(tall * rng.uniform(0.05, 0.2))), colour(rng)
    cv2.rectangle(image, (x - wide, foot - tall + wide), (x + wide, foot), paint, -1)
    cv2.ellipse(image, (x, foot - tall + wide), (wide, wide), 0, 180, 360, paint, -1)
    for _ in range(int(rng.integers(0, 3))):
        y = foot - int(tall * rng.uniform(0.2, 0.9))
        cv2.rectangle(image, (x - wide, y), (x + wide, y + max(1, tall // 12)), colour(rng), -1)


def _plant(rng: Rng, image: Image, x: int, foot: int, tall: int) -> None:
    """Leaves over a pot."""
    pot = int(tall * rng.uniform(0.1, 0.4))
    for _ in range(int(rng.integers(6, 25))):
        green = int(rng.integers(40, 180))
        middle = (x + int(tall * rng.uniform(-0.2, 0.2)), foot - pot - int((tall - pot) * rng.uniform(0, 0.9)))
        axes = (max(1, int(tall * rng.uniform(0.02, 0.1))), max(1, int(tall * rng.uniform(0.04, 0.2))))
        cv2.ellipse(image, middle, axes, float(rng.uniform(0, 180)), 0, 360, (green // 3, green, green // 2), -1)
    cv2.rectangle(image, (x - tall // 8, foot - pot), (x + tall // 8, foot), colour(rng), -1)
