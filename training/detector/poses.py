"""What people in street photographs seldom do: seen from above, reaching out."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from training.detector.people import CutOut, Image
from training.detector.scenery import Rng

SHOULDER, CHEST, FACE = (0.17, 0.22), (0.2, 0.42), (0.04, 0.1)
"""Shares of a standing person's height, from the top."""


def from_above(rng: Rng, person: CutOut) -> CutOut:
    """As a camera under a ceiling sees somebody: shoulders wider than feet, and shorter."""
    rows, columns = person.size
    narrow, short = rng.uniform(0.0, 0.25) * columns, rows * rng.uniform(0.65, 1.0)
    corners = np.array([(0, 0), (columns, 0), (columns, rows), (0, rows)], np.float32)
    seen = np.array([(0, 0), (columns, 0), (columns - narrow, short), (narrow, short)], np.float32)
    turn, size = cv2.getPerspectiveTransform(corners, seen), (columns, max(4, int(short)))
    image, alpha = cv2.warpPerspective(person.image, turn, size), cv2.warpPerspective(person.alpha, turn, size)
    return CutOut(np.asarray(image, dtype=np.uint8), np.asarray(alpha, dtype=np.uint8))


def leaning(image: Image, alpha: NDArray[np.uint8], degrees: float) -> tuple[Image, NDArray[np.uint8]]:
    """Turned about the feet, in a picture wide enough for all of it; as high as before."""
    high, wide = alpha.shape
    aside = int(high * abs(np.sin(np.radians(degrees)))) + 1
    turn = cv2.getRotationMatrix2D((wide / 2, high), degrees, 1.0)
    turn[0, 2] += aside
    size = (wide + 2 * aside, high)
    image, alpha = cv2.warpAffine(image, turn, size), cv2.warpAffine(alpha, turn, size)
    there = np.where((alpha > 20).any(axis=0))[0]
    seen = slice(int(there.min()), int(there.max()) + 1) if len(there) else slice(0, size[0])
    return np.ascontiguousarray(image[:, seen]), np.ascontiguousarray(alpha[:, seen])


def reaching(rng: Rng, person: CutOut) -> CutOut:
    """With one arm, or both, stretched out to the sides in the cloth of the chest: the box of a person ends at the
    hands. The arms hang beside the body as well; at a camera's size that is hardly to be seen."""
    rows, columns = person.size
    margin = int(0.5 * rows)
    image = cv2.copyMakeBorder(person.image, 0, 0, margin, margin, cv2.BORDER_REPLICATE)
    alpha = cv2.copyMakeBorder(person.alpha, 0, 0, margin, margin, cv2.BORDER_CONSTANT, value=0)
    body = alpha > 127
    sides = (-1, 1) if rng.random() < 0.3 else (int(rng.choice([-1, 1])),)
    cloth, skin = _cloth(rng, image, body), _skin(image, body)
    over, arms = image.copy(), np.zeros_like(alpha)
    for side in sides:
        shoulder = _shoulder(rng, body, side)
        if shoulder is not None:
            _arm(rng, over, arms, shoulder, side, rows, cloth, skin)
    if rng.random() < 0.5:  # behind the body
        arms[body] = 0
    weight = cv2.GaussianBlur(arms, (3, 3), 0).astype(np.float32)[:, :, None] / 255.0
    image = (over * weight + image * (1 - weight)).astype(np.uint8)
    alpha = np.maximum(alpha, cv2.GaussianBlur(arms, (3, 3), 0)).astype(np.uint8)
    there = np.where((alpha > 20).any(axis=0))[0]
    seen = slice(int(there.min()), int(there.max()) + 1) if len(there) else slice(0, columns)
    return CutOut(np.ascontiguousarray(image[:, seen]), np.ascontiguousarray(alpha[:, seen]))


def _cloth(rng: Rng, image: Image, body: NDArray[np.bool_]) -> Image:
    """A picture as large, all of it the chest's stuff, with a fold's light and dark."""
    rows, columns = body.shape
    band = slice(int(CHEST[0] * rows), int(CHEST[1] * rows))
    there = np.where(body[band].mean(axis=0) > 0.9)[0]
    if len(there) < 4:
        return np.full_like(image, int(rng.integers(20, 200)))
    patch = image[band, int(there[0]) : int(there[-1]) + 1]
    stuff = np.tile(np.hstack([patch, patch[:, ::-1]]), (1, 1 + columns // (2 * patch.shape[1]), 1))[:, :columns]
    stuff = cv2.resize(np.ascontiguousarray(stuff), (columns, rows)).astype(np.float32)
    folds = cv2.resize(rng.uniform(0.7, 1.15, (9, 9)).astype(np.float32), (columns, rows))
    return np.asarray(np.clip(stuff * folds[:, :, None], 0, 255), dtype=np.uint8)


def _skin(image: Image, body: NDArray[np.bool_]) -> tuple[float, float, float]:
    rows = body.shape[0]
    band = slice(int(FACE[0] * rows), max(int(FACE[1] * rows), int(FACE[0] * rows) + 1))
    face = image[band][body[band]]
    blue, green, red = np.median(face, axis=0) if len(face) else (120.0, 150.0, 190.0)
    return float(blue), float(green), float(red)


def _shoulder(rng: Rng, body: NDArray[np.bool_], side: int) -> tuple[int, int] | None:
    y = int(rng.uniform(*SHOULDER) * body.shape[0])
    across = np.where(body[y])[0]
    if len(across) < 3:
        return None
    inward = int(0.15 * (across[-1] - across[0]))
    return (int(across[-1]) - inward if side > 0 else int(across[0]) + inward), y


def _arm(
    rng: Rng,
    over: Image,
    arms: NDArray[np.uint8],
    shoulder: tuple[int, int],
    side: int,
    rows: int,
    cloth: Image,
    skin: tuple[float, float, float],
) -> None:
    """Draws one into ``over`` and its outline into ``arms``: sleeve, perhaps a bare forearm, hand."""
    length, slope = rows * rng.uniform(0.2, 0.42), np.radians(rng.uniform(-45, 40))
    bend = slope + np.radians(rng.uniform(-35, 35))
    half = length * rng.uniform(0.45, 0.55)
    elbow = (shoulder[0] + side * half * np.cos(slope), shoulder[1] + half * np.sin(slope))
    wrist = (elbow[0] + side * (length - half) * np.cos(bend), elbow[1] + (length - half) * np.sin(bend))
    points = [np.array(point).astype(int) for point in (shoulder, elbow, wrist)]
    thick = [max(2, int(rows * share * rng.uniform(0.8, 1.25))) for share in (0.075, 0.055)]
    sleeve = np.zeros_like(arms)
    cv2.line(sleeve, points[0].tolist(), points[1].tolist(), 255, thick[0], cv2.LINE_AA)
    bare = np.zeros_like(arms)
    cv2.line(
        bare if rng.random() < 0.25 else sleeve, points[1].tolist(), points[2].tolist(), 255, thick[1], cv2.LINE_AA
    )
    reach = (max(2, int(rows * 0.035)), max(1, int(rows * 0.018)))
    cv2.ellipse(bare, points[2].tolist(), reach, float(np.degrees(bend)) * side, 0, 360, 255, -1, cv2.LINE_AA)
    over[bare > 0] = skin
    over[sleeve > 0] = cloth[sleeve > 0]
    np.maximum(arms, np.maximum(sleeve, bare), out=arms)
