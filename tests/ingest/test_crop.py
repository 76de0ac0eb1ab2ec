"""Crops in a shape that every model's processor takes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.crop import crop_window, cut, encode_jpeg
from pipeline.config import CropConfig

CONFIG = CropConfig()


def centred(width: float, height: float, frame: tuple[int, int] = (4096, 4096)):
    x, y = frame[0] / 2, frame[1] / 2
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return crop_window(box, *frame, CONFIG)


@pytest.mark.parametrize(
    ("size", "wide", "high"),
    [
        ((1, 1), None, None),
        ((16, 16), None, None),
        ((31, 639), 207, 830),
        ((4000, 12), 4096, 1024),
        ((4096, 4096), 4096, 4096),
        ((100, 300), 130, 390),
        ((20, 60), 48, 78),
    ],
)
def test_r38_extreme_boxes_become_ordinary_crops_or_none(size, wide, high):
    window = centred(*size)

    if wide is None:
        assert window is None
        return
    left, top, right, bottom = window
    assert (right - left, bottom - top) == (wide, high)


def test_r38_large_crops_are_scaled_to_the_pixel_cap():
    image = np.zeros((4096, 4096, 3), dtype=np.uint8)

    picture = cut(image, centred(4096, 4096), CONFIG.max_pixels)

    height, width = picture.shape[:2]
    assert 0.99 * CONFIG.max_pixels < height * width <= CONFIG.max_pixels
    assert width == height


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_r38_any_box_in_any_frame(frame_width, frame_height, a, b, c, d):
    (x1, x2), (y1, y2) = sorted((a * frame_width, c * frame_width)), sorted((b * frame_height, d * frame_height))

    window = crop_window((x1, y1, x2, y2), frame_width, frame_height, CONFIG)

    if window is None:
        # The box has no area, is small in both directions, or the frame itself is.
        too_thin = min(frame_width, frame_height) < CONFIG.min_side
        assert too_thin or max(x2 - x1, y2 - y1) < CONFIG.min_side or x1 == x2 or y1 == y2
        return
    left, top, right, bottom = window
    wide, high = right - left, bottom - top
    assert 0 <= left < right <= frame_width
    assert 0 <= top < bottom <= frame_height
    assert min(wide, high) >= CONFIG.min_side
    assert max(wide, high) <= CONFIG.max_aspect * min(wide, high) + CONFIG.max_aspect
    if max(x2 - x1, y2 - y1) <= CONFIG.max_aspect * min(frame_width, frame_height):
        assert left <= x1 + 1, "the whole person is in it"
        assert right >= x2 - 1
        assert top <= y1 + 1
        assert bottom >= y2 - 1


def test_context_is_kept_at_the_edge_by_moving_the_window_inwards():
    left, top, right, bottom = crop_window((0, 0, 100, 300), 640, 480, CONFIG)

    assert (left, top) == (0, 0)
    assert (right, bottom) == (130, 390)


@pytest.mark.parametrize("box", [(float("nan"), 0, 100, 100), (50, 50, 50, 200), (700, 0, 900, 100)])
def test_what_is_no_box_gives_no_crop(box):
    assert crop_window(box, 640, 480, CONFIG) is None


def test_a_cut_is_a_copy_of_those_pixels():
    image = np.arange(100 * 100 * 3, dtype=np.uint32).reshape(100, 100, 3).astype(np.uint8)
    picture = cut(image, (10, 20, 60, 90), CONFIG.max_pixels)

    assert np.array_equal(picture, image[20:90, 10:60])
    image[:] = 0
    assert picture.any()


def test_the_jpeg_shows_the_picture():
    picture = np.full((80, 60, 3), (200, 100, 50), dtype=np.uint8)

    shown = cv2.imdecode(np.frombuffer(encode_jpeg(picture, 90), dtype=np.uint8), cv2.IMREAD_COLOR)

    assert shown.shape == picture.shape
    assert np.abs(shown.astype(int) - picture).max() < 8


def test_jpegs_are_made_by_libjpeg_turbo():
    (line,) = [line for line in cv2.getBuildInformation().splitlines() if line.strip().startswith("JPEG:")]

    assert "turbo" in line
