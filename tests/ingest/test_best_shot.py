"""Which picture of a person is the best one."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ingest.best_shot import BestShot, View, covered, quality_of, sharpness, wholeness
from pipeline.config import CropConfig
from tests.ingest.helpers import frame_of, person

STANDING = person(223, 404, 346, 861)
"""The man in black on ultralytics' bus.jpg."""


@pytest.fixture(scope="module")
def bus(photograph) -> np.ndarray:
    return photograph("bus.jpg")


def quality(image, detection, others=()) -> float:
    value = quality_of(frame_of(image), detection, others)
    assert 0 <= value <= 1
    return value


def test_sharp_beats_blurred(bus):
    blurred = cv2.GaussianBlur(bus, (0, 0), 8)

    assert sharpness(bus, STANDING.box) > 0.7
    assert sharpness(blurred, STANDING.box) < 0.3
    assert quality(bus, STANDING) > quality(blurred, STANDING) + 0.15


def test_large_beats_small(bus):
    small = cv2.resize(bus, None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA)

    assert quality(bus, STANDING) > quality(small, person(*(v / 4 for v in STANDING.box))) + 0.05


def test_certain_beats_doubtful(bus):
    assert quality(bus, STANDING) > quality(bus, person(*STANDING.box, score=0.4)) + 0.1


def test_whole_beats_cut_off(bus):
    cut_off = bus[: int(STANDING.box[3]) - 100]

    assert quality(bus, STANDING) > quality(cut_off, person(*STANDING.box[:3], cut_off.shape[0])) + 0.1


def test_free_beats_covered(bus):
    x1, y1, x2, y2 = STANDING.box
    in_front = (x1 + 20, y1 + 100, x2 + 100, y2 + 50)
    behind = (x1 + 20, y1 - 50, x2 + 100, y2 - 50)

    free, hidden, partly = quality(bus, STANDING), quality(bus, STANDING, [in_front]), quality(bus, STANDING, [behind])
    assert free > partly > hidden


@pytest.mark.parametrize(
    ("box", "value"),
    [
        ((100, 100, 200, 300), 1.0),
        ((1, 100, 200, 300), 0.75),
        ((5, 100, 200, 300), 0.75),
        ((10, 100, 200, 300), 1.0),
        ((0, 0, 200, 300), 0.5625),
        ((0, 0, 640, 480), 0.5),
    ],
)
def test_the_edge_counts_with_a_tolerance(box, value):
    """Frigate's exact comparison lets a box one pixel inside count as whole."""
    assert wholeness(box, 640, 480) == value


def test_covering_needs_to_share_area():
    assert covered((0, 0, 100, 100), (200, 0, 300, 100)) == 0
    assert covered((0, 0, 100, 100), (50, 0, 150, 100)) == pytest.approx(0.5)


def test_only_the_best_shot_is_kept_with_everything_of_its_own_frame(bus):
    best = BestShot(CropConfig())
    blurred = cv2.GaussianBlur(bus, (0, 0), 8)

    best.offer(View(frame_of(blurred, number=1, time=10.0), STANDING))
    best.offer(View(frame_of(bus, number=2, time=11.0), STANDING))
    best.offer(View(frame_of(blurred, number=3, time=12.0), STANDING))

    assert (best.best.frame_number, best.best.time, best.best.box) == (2, 11.0, STANDING.box)
    assert (best.best.frame_width, best.best.frame_height) == (810, 1080)
    assert best.best.picture.base is None, "holds the crop alone, not the frame"


def test_who_is_too_small_has_no_shot(bus):
    best = BestShot(CropConfig())
    best.offer(View(frame_of(bus), person(10, 10, 40, 50)))

    assert best.best is None
