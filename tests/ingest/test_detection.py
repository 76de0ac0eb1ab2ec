"""The check at the detector's boundary."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.detection import check_boxes, iou

INF, NAN = math.inf, math.nan


LABELS = {0: "person", 2: "car"}


def check(*rows, least=0.1):
    """Rows of five are people."""
    whole = [row if len(row) == 6 else (*row, 0) for row in rows]
    return check_boxes(np.array(whole, dtype=np.float32).reshape(-1, 6), 640, 480, least, LABELS)


@pytest.mark.parametrize(
    "box",
    [
        (INF, 0, 50, 50),
        (0, 0, INF, 50),
        (-INF, 0, 50, 50),
        (NAN, 0, 50, 50),
        (NAN, NAN, NAN, NAN),
        (10, 10, 10, 50),
        (10, 10, 50, 10),
        (10, 10, 10, 10),
        (50, 10, 10, 50),
        (10, 50, 50, 10),
        (700, 10, 800, 50),
        (-50, 10, -10, 50),
    ],
)
def test_r36_boxes_that_are_none_are_dropped_and_counted(box):
    checked = check((*box, 0.9), (100, 100, 200, 300, 0.8))

    assert checked.invalid == 1
    assert [d.box for d in checked.detections] == [(100, 100, 200, 300)]


@pytest.mark.parametrize("score", [NAN, INF, 1.5])
def test_r36_scores_that_are_none_are_dropped_and_counted(score):
    checked = check((100, 100, 200, 300, score))

    assert checked.invalid == 1
    assert checked.detections == ()


@given(st.lists(st.tuples(*[st.floats(width=32) for _ in range(4)], st.floats(0, 1, width=32)), max_size=30))
def test_r36_whatever_comes_only_sound_boxes_pass(rows):
    checked = check(*rows, least=0.0)

    assert len(checked.detections) + checked.invalid <= len(rows)
    for detection in checked.detections:
        x1, y1, x2, y2 = detection.box
        assert 0 <= x1 < x2 <= 640
        assert 0 <= y1 < y2 <= 480
        assert 0 <= detection.score <= 1
    for a, first in enumerate(checked.detections):
        for second in checked.detections[a + 1 :]:
            assert iou(first.box, second.box) <= 0.9


def test_boxes_over_the_edge_are_clipped():
    checked = check((-20, -5, 100, 500, 0.9))

    assert checked.detections[0].box == (0, 0, 100, 480)


def test_r39_the_same_person_twice_is_one_detection():
    first, second = (100, 100, 200, 300, 0.9), (102, 100, 202, 304, 0.7)
    assert iou(first[:4], second[:4]) == pytest.approx(0.942, abs=0.01)

    checked = check(second, first)

    assert [d.box for d in checked.detections] == [(100, 100, 200, 300)]
    assert checked.invalid == 0


def test_two_people_who_overlap_stay_two():
    assert len(check((100, 100, 200, 300, 0.9), (120, 100, 220, 300, 0.8)).detections) == 2


def test_weak_ones_are_left_out_without_being_counted():
    checked = check((100, 100, 200, 300, 0.2), least=0.35)

    assert (checked.detections, checked.invalid) == ((), 0)


def test_what_is_not_looked_for_is_left_out_whatever_its_box():
    checked = check((100, 100, 200, 300, 0.9, 7), (NAN, 0, 50, 50, 0.9, 7), (100, 100, 200, 300, 0.8, 2))

    assert [(d.label, d.score) for d in checked.detections] == [("car", pytest.approx(0.8))]
    assert checked.invalid == 0


def test_a_person_before_a_car_of_the_same_outline_stays():
    checked = check((100, 100, 200, 300, 0.9, 2), (100, 100, 200, 300, 0.8, 0))

    assert [d.label for d in checked.detections] == ["car", "person"]
