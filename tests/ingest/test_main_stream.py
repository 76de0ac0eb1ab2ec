"""People are looked for on the sub-stream and cut out of the main stream's picture of the same moment."""

from __future__ import annotations

import numpy as np

from ingest.best_shot import seen_on
from ingest.decoder import DecoderDevices
from ingest.demo_camera import DemoCamera
from ingest.frame import RecentFrames
from ingest.main_stream import MainStream
from pipeline.clock import SystemClock
from pipeline.config import CameraConfig
from pipeline.messages import CameraState
from tests.ingest.helpers import frame_of, wait_for
from tests.ingest.test_worker import QuickClip, Site

SMALL = np.zeros((48, 64, 3), np.uint8)
LARGE = np.zeros((480, 1280, 3), np.uint8)


def test_the_nearest_picture_is_found_if_it_is_near_enough():
    recent = RecentFrames(keep=3)
    assert recent.nearest(1.0, 10.0) is None
    for number in range(5):
        recent.put(frame_of(LARGE, number, monotonic=float(number)))
    assert recent.nearest(3.2, 0.3).number == 3
    assert recent.nearest(3.6, 0.5).number == 4
    assert recent.nearest(1.0, 0.5) is None, "only the last three are kept"
    recent.clear()
    assert recent.nearest(3.0, 10.0) is None


def test_a_box_keeps_its_place_in_a_picture_of_another_size_and_shape():
    assert seen_on(frame_of(LARGE), frame_of(SMALL), (16, 12, 32, 48)) == (320, 120, 640, 480)


def test_the_main_stream_rests_until_somebody_is_in_view(demo, monkeypatch):
    monkeypatch.setattr("ingest.main_stream.IDLE_AFTER_S", 0.3)
    camera = demo(gop=10)
    config = CameraConfig(
        id="cam", url=camera.url, fps=25, decode="cpu", open_timeout_s=20, stall_timeout_s=30, substream_apart_s=0.5
    )
    main = MainStream(config, SystemClock(), DecoderDevices())
    main.start()
    try:
        wait_for(lambda: main._reader.health().idle, 30, "rest, although the picture moves")
        handed_on, shown = main._reader.health().frames, camera.index
        wait_for(lambda: camera.index > shown + 50, 30, "fifty pictures")
        assert main._reader.health().frames - handed_on <= 8, "keyframes"

        def decodes_all() -> bool:
            main.keep_awake()
            return not main._reader.health().idle

        wait_for(decodes_all, 30, "awake at the next keyframe")
    finally:
        assert main.stop(10)
    wait_for(lambda: camera.clients == 0, 30, "end of the session")


def test_a_main_stream_that_is_not_there_gives_no_picture_and_keeps_trying():
    main = MainStream(CameraConfig(id="cam", url="rtsp://127.0.0.1:1/x", decode="cpu"), SystemClock(), DecoderDevices())
    main.start()
    try:
        wait_for(lambda: main._reader.health().next_retry, 30, "the next attempt")
        assert main.picture_of(frame_of(SMALL, monotonic=1.0)) is None
    finally:
        assert main.stop(10)


def test_crops_are_of_the_main_stream(redis_url, openvino_weights):
    """Given a main stream of 640x480 and a sub-stream of 320x240."""
    main = DemoCamera(QuickClip(), fps=10, gop=5)
    sub = DemoCamera(QuickClip(320, 240), fps=10, gop=5)
    for camera in (main, sub):
        camera.start()
    site = Site(
        redis_url,
        openvino_weights,
        CameraConfig(id="demo", url=main.url, substream_url=sub.url, fps=10, decode="cpu", substream_apart_s=1.0),
    )
    site.worker.start()
    try:
        large = wait_for(lambda: [c for c in site.crops("demo") if c.frame_width == 640], 60, "a large crop")[0]
        status = site.status("demo")
        assert status.state is CameraState.ONLINE
    finally:
        site.worker.stop()
        for camera in (main, sub):
            camera.stop()
    assert (status.width, status.height) == (320, 240), "looked at"
    assert large.frame_height == 480
    assert 0 <= large.box[0] < large.box[2] <= 640
    assert main.clients == sub.clients == 0
