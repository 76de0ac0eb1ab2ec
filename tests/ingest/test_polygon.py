"""Privacy masks on pictures, and at the end of everything that leaves a camera's reader."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.decoder import DecoderDevices
from ingest.main_stream import MainStream
from ingest.polygon import PrivacyMasks, contains
from pipeline.clock import SystemClock
from pipeline.config import CameraConfig
from tests.ingest.helpers import wait_for
from tests.ingest.watch import Watch

RIGHT = [[0.5, 0.0], [1.0, 0.0], [1.0, 1.0], [0.5, 1.0]]
PATIENT = {"open_timeout_s": 20, "first_frame_timeout_s": 30, "stall_timeout_s": 30}


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=7),
    st.integers(8, 200),
    st.integers(8, 200),
)
def test_no_pixel_whose_middle_lies_in_a_mask_keeps_its_colour(points, width, height):
    image = np.full((height, width, 3), 200, dtype=np.uint8)
    PrivacyMasks([tuple(points)]).black_out(image)
    for row in range(0, height, 7):
        for column in range(0, width, 7):
            if contains(tuple(points), (column + 0.5) / width, (row + 0.5) / height):
                assert not image[row, column].any()


def test_what_is_not_masked_keeps_its_colour_and_sizes_may_change():
    masks = PrivacyMasks([RIGHT])
    for width, height in ((100, 80), (64, 48), (641, 361)):
        image = np.full((height, width, 3), 200, dtype=np.uint8)
        masks.black_out(image)
        assert not image[:, (width + 1) // 2 :].any()
        assert (image[:, : width // 2 - 2] == 200).all()


def test_without_masks_a_picture_stays_as_it_is():
    image = np.full((48, 64, 3), 200, dtype=np.uint8)
    PrivacyMasks([]).black_out(image)
    assert (image == 200).all()


def test_a_masked_camera_hands_on_black_there_and_can_still_be_frozen(demo):
    """Given a still picture under a mask, then the mask does not make it another one."""
    camera = demo(gop=5)
    with Watch(camera.url, masks=[RIGHT], frozen_after_s=0.3, **PATIENT) as watch:
        watch.wait_for_frames(5)
        camera.faults.frozen = True
        wait_for(lambda: watch.reader.health().state.value == "frozen", 30, "frozen")
    for frame in watch.slot.frames:
        assert not frame.image[:, 128:].any()
        assert frame.image[:, :126].any()


def test_the_main_stream_is_masked_too(demo):
    camera = demo(gop=5)
    config = CameraConfig(id="cam", url=camera.url, fps=25, decode="cpu", masks=[RIGHT], substream_apart_s=5, **PATIENT)
    main = MainStream(config, SystemClock(), DecoderDevices())
    main.start()
    try:
        picture = wait_for(lambda: main._recent.nearest(SystemClock().monotonic(), 5), 30, "a picture")
    finally:
        assert main.stop(10)
    assert not picture.image[:, 128:].any()
    assert picture.image.any()


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ([[0, 0], [1, 1]], "3 to 100 points, this one has 2"),
        ([[0, 0], [0.5, 0], [640, 480]], r"\[640, 480\] lies outside the picture"),
        ([[0, 0], [0.5, 0], [float("nan"), 0]], "lies outside"),
        ([[0, 0], [0.5, 0.5], [1, 1]], "no area"),
    ],
)
def test_a_polygon_that_is_none_is_refused_with_what_is_wrong(points, problem):
    with pytest.raises(ValueError, match=problem):
        CameraConfig(id="cam", url="rtsp://h/x", masks=[points])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"zones": [{"name": "a", "points": RIGHT}, {"name": "a", "points": RIGHT}]}, "'a' is used twice"),
        ({"classes": ["person"], "zones": [{"name": "a", "points": RIGHT, "classes": ["car"]}]}, "asks for 'car'"),
        ({"idle_after_s": 5, "motion": {"enabled": False}}, "nothing would wake it"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, problem):
    with pytest.raises(ValueError, match=problem):
        CameraConfig(id="cam", url="rtsp://h/x", **settings)


def test_a_mask_is_black_in_the_jpeg_too():
    """JPEG smears over eight pixels; what was under the mask was black before, so nothing of it can be smeared."""
    image = np.random.default_rng(2).integers(100, 255, (160, 160, 3), dtype=np.uint8)
    other = image.copy()
    other[:, 80:] = 255 - other[:, 80:]
    for picture in (image, other):
        PrivacyMasks([RIGHT]).black_out(picture)
    assert cv2.imencode(".jpg", image)[1].tobytes() == cv2.imencode(".jpg", other)[1].tobytes()
