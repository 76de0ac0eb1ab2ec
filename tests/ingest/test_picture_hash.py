"""Which pictures count as the same."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ingest.best_shot import BestShot, Shot, View, look_alike
from ingest.crop import encode_jpeg
from ingest.picture_hash import bits_apart, picture_hash
from pipeline.config import CropConfig
from tests.ingest.helpers import frame_of, person

SAME = CropConfig().same_bits


@pytest.fixture(scope="module")
def crop(photograph) -> np.ndarray:
    return photograph("bus.jpg")[404:861, 223:346].copy()


@pytest.mark.parametrize(
    "change",
    [
        lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
        lambda image: cv2.GaussianBlur(image, (0, 0), 3),
        lambda image: cv2.imdecode(np.frombuffer(encode_jpeg(image, 40), np.uint8), cv2.IMREAD_COLOR),
        lambda image: cv2.convertScaleAbs(image, alpha=1.15, beta=8),
    ],
    ids=["smaller", "blurred", "compressed", "brighter"],
)
def test_the_same_view_has_nearly_the_same_hash(crop, change):
    assert bits_apart(picture_hash(crop), picture_hash(change(crop))) <= SAME


def test_another_view_has_another_hash(crop, photograph):
    other = photograph("bus.jpg")[397:903, 48:238]

    assert bits_apart(picture_hash(crop), picture_hash(cv2.flip(crop, 1))) > 2 * SAME
    assert bits_apart(picture_hash(crop), picture_hash(other)) > 2 * SAME


def shot_of(image: np.ndarray, box) -> Shot:
    kept = BestShot(CropConfig())
    kept.offer(View(frame_of(image), person(*box)))
    assert kept.best is not None
    return kept.best


def test_a_sharper_or_much_larger_picture_is_not_the_same(photograph):
    bus, box = photograph("bus.jpg"), (223, 404, 346, 861)
    half = tuple(v / 2 for v in box)
    sharp, blurred = shot_of(bus, box), shot_of(cv2.GaussianBlur(bus, (0, 0), 8), box)
    small = shot_of(cv2.resize(bus, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), half)

    assert look_alike(sharp, shot_of(bus, (226, 406, 348, 862)), SAME)
    assert not look_alike(sharp, blurred, SAME)
    assert not look_alike(sharp, small, SAME)
