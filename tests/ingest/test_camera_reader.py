"""The reader of one camera: connecting, staying connected, coming back, saying what is wrong."""

from __future__ import annotations

import logging
import socket
import time
from itertools import pairwise

import av
import pytest

from ingest.backoff import Backoff
from ingest.demo_camera import DemoCamera, Faults
from pipeline.messages import CameraState
from pipeline.reasons import Reason
from tests.ingest.conftest import FPS
from tests.ingest.helpers import NumberedClip, number_of, wait_for
from tests.ingest.watch import Watch, online


def test_frames_come_with_their_arrival_and_size(numbered_camera):
    started = time.time()
    with Watch(numbered_camera.url) as watch:
        watch.wait_for_frames(30)
        health = watch.reader.health()
        frames = list(watch.slot.frames)

    assert online(health)
    assert (health.width, health.height) == (256, 64)
    assert 15 < health.fps < 35
    assert [frame.number for frame in frames] == list(range(1, len(frames) + 1))
    numbers = [number_of(frame.image) for frame in frames]
    assert numbers == sorted(set(numbers))
    for earlier, later in pairwise(frames):
        assert later.monotonic > earlier.monotonic
    assert all(started < frame.time < time.time() for frame in frames)


def test_r30_the_first_frame_handed_on_is_a_new_one(numbered_camera):
    """No frame older than half a second is handed on; that a backlog is left out, test_arrival.py says."""
    ages: list[float] = []
    with Watch(numbered_camera.url) as watch:
        put = watch.slot.put

        def measure(frame):
            ages.append((numbered_camera.index - number_of(frame.image)) / FPS)
            put(frame)

        watch.slot.put = measure
        watch.wait_for_frames(10)

    assert max(ages) < 0.5


def test_the_wanted_rate_is_kept_by_arrival(numbered_camera):
    with Watch(numbered_camera.url, fps=5) as watch:
        watch.wait_for_frames(1)
        begun = time.monotonic()
        watch.wait_for_frames(10)
        took = time.monotonic() - begun

    assert 1.6 < took < 2.8


def test_r01_a_camera_that_accepts_and_never_answers_is_unreachable_in_time():
    with socket.create_server(("127.0.0.1", 0)) as hole:
        begun = time.monotonic()
        with Watch(f"rtsp://127.0.0.1:{hole.getsockname()[1]}/x") as watch:
            watch.wait_for_state(CameraState.UNREACHABLE, Reason.TIMEOUT)
            assert time.monotonic() - begun < 2.0, "open timeout and one second"


def test_r02_a_camera_that_plays_nothing_runs_into_its_own_deadline(numbered_camera):
    numbered_camera.stall()
    with Watch(numbered_camera.url, open_timeout_s=0.5, first_frame_timeout_s=1.0) as watch:
        watch.wait_for_state(CameraState.STALLED, Reason.FIRST_FRAME_TIMEOUT, timeout=5)
        assert watch.slot.frames == []
        numbered_camera.resume()
        watch.wait_for_state(CameraState.ONLINE)


def test_r03_a_camera_that_restarts_comes_back_by_itself():
    camera = DemoCamera(NumberedClip(FPS), fps=FPS, gop=5)
    camera.start()
    port = int(camera.url.split(":")[2].split("/")[0])
    with Watch(camera.url, retry=0.2) as watch:
        watch.wait_for_frames(5)
        camera.stop()
        watch.wait_for_state(CameraState.UNREACHABLE, Reason.REFUSED)
        camera = DemoCamera(NumberedClip(FPS), fps=FPS, gop=5, port=port)
        camera.start()
        try:
            watch.wait_for_frames(5)
            assert watch.reader.health().reconnects == 1
            assert online(watch.reader.health())
        finally:
            camera.stop()


def test_r07_hundreds_of_failures_and_still_trying():
    """Given a port where nobody listens, then the reader goes on after 200 attempts, each soon after the last."""
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    backoff = Backoff(first=0.0005, cap=0.002)
    watch = Watch(f"rtsp://127.0.0.1:{port}/x")
    watch.reader._backoff = backoff
    with watch:
        wait_for(lambda: backoff.failures > 200, what="200 attempts")
        health = watch.reader.health()
        assert (health.state, health.reason) == (CameraState.UNREACHABLE, Reason.REFUSED)
    assert len(watch.states) == 2, "one change when it failed, one when it stopped"


def test_r09_no_session_is_left_behind_by_reconnects(numbered_camera):
    with Watch(numbered_camera.url) as watch:
        for _ in range(10):
            watch.wait_for_frames(1)
            numbered_camera.close_clients()
            wait_for(lambda: watch.states[-1].state is CameraState.STALLED, what="loss noticed")
            wait_for(lambda: online(watch.states[-1]), what="reconnected")
        assert watch.reader.health().reconnects == 10
        assert numbered_camera.clients == 1
    wait_for(lambda: numbered_camera.clients == 0, what="end of the last session")
    assert numbered_camera.counts.connections == 11


def test_a_stall_is_noticed_told_and_survived(numbered_camera):
    with Watch(numbered_camera.url) as watch:
        watch.wait_for_frames(5)
        numbered_camera.stall()
        stalled = watch.wait_for_state(CameraState.STALLED, Reason.NO_FRAMES, timeout=5)
        assert stalled.next_retry is not None
        handed_on = len(watch.slot.frames)
        numbered_camera.resume()
        watch.wait_for_frames(5)
        last_before = number_of(watch.slot.frames[handed_on - 1].image)
        assert number_of(watch.slot.frames[handed_on].image) > last_before
        assert online(watch.reader.health())


def test_r31_nothing_is_made_up_while_the_camera_is_silent(numbered_camera):
    with Watch(numbered_camera.url, stall_timeout_s=30) as watch:
        watch.wait_for_frames(5)
        numbered_camera.stall()
        shown = numbered_camera.index
        # The parser's last frame comes out when the read is interrupted for the first time.
        wait_for(lambda: numbered_camera.index > shown + 1.5 * FPS, what="a pause")
        handed_on = len(watch.slot.frames)
        wait_for(lambda: numbered_camera.index > shown + 2.5 * FPS, what="another second")
        assert len(watch.slot.frames) == handed_on
        numbers = [number_of(frame.image) for frame in watch.slot.frames]
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("silent", [False, True])
def test_stop_is_prompt_and_ends_the_session(numbered_camera, silent):
    with Watch(numbered_camera.url, stall_timeout_s=60) as watch:
        watch.wait_for_frames(1)
        if silent:
            numbered_camera.stall()
            shown = numbered_camera.index
            wait_for(lambda: numbered_camera.index > shown + FPS, what="a second")
        begun = time.monotonic()
        assert watch.reader.stop()
        assert time.monotonic() - begun < 2.5
        assert watch.states[-1].state is CameraState.STOPPING
    wait_for(lambda: numbered_camera.clients == 0, 1.0, "end of the session")


def test_stop_is_prompt_while_waiting_for_the_next_attempt():
    with Watch("rtsp://127.0.0.1:1/x", retry=60) as watch:
        watch.wait_for_state(CameraState.UNREACHABLE, Reason.REFUSED)
        begun = time.monotonic()
        assert watch.reader.stop()
        assert time.monotonic() - begun < 0.5


@pytest.mark.parametrize("url", ["rtsp://nobody.invalid/x", "rtsp://127.0.0.1:99999/x"])
def test_a_host_or_port_that_cannot_be_is_told(url):
    with Watch(url, retry=30) as watch:
        wait_for(lambda: watch.states, what="a state")
        assert watch.states[0].state in (CameraState.UNREACHABLE, CameraState.UNSUPPORTED)
        assert watch.states[0].reason in (Reason.HOST, Reason.BAD_SOURCE)


def test_r15_r16_no_failure_puts_the_password_into_a_log_line(caplog, numbered_camera):
    caplog.set_level(logging.DEBUG)
    camera = DemoCamera(NumberedClip(FPS), fps=FPS, faults=Faults(status_at={"DESCRIBE": 401}))
    camera.start()
    hole = socket.create_server(("127.0.0.1", 0))
    places = (f"127.0.0.1:{camera.port}", "127.0.0.1:1", f"127.0.0.1:{hole.getsockname()[1]}", "nobody.invalid")
    secret_urls = [f"rtsp://admin:S3cret%40pass%2Fword@{place}/x" for place in places]
    secret_urls += ["rtsp://admin:S3cret@pass#word@127.0.0.1/x", "rtsp://admin:S3cret@pass?word@127.0.0.1:1/x"]
    found = []
    try:
        for url in secret_urls:
            with Watch(url, open_timeout_s=0.4, retry=30) as watch:
                wait_for(lambda watch=watch: watch.states, what=f"a state of {url}")
                found.append(watch.states[0])
        with Watch(numbered_camera.url.replace("://", "://admin:S3cret@"), retry=30) as watch:
            watch.wait_for_frames(1)
            numbered_camera.close_clients()
            watch.wait_for_state(CameraState.STALLED, Reason.STREAM_ENDED)
            found += watch.states
    finally:
        camera.stop()
        hole.close()

    told = caplog.text + repr(found)
    assert "attempt 1" in told
    assert "S3cret" not in told
    assert "word@" not in told


def test_a_file_is_played_at_its_own_speed_and_then_again(tmp_path):
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 256, 64, "yuv420p"
        clip = NumberedClip(FPS)
        for number in range(FPS):
            picture = av.VideoFrame.from_ndarray(clip.picture(number / FPS), format="bgr24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    with Watch(str(path), fps=60) as watch:
        watch.wait_for_state(CameraState.STALLED, Reason.STREAM_ENDED)
        frames = watch.slot.frames[:FPS]
        watch.wait_for_frames(1)

    assert [number_of(frame.image) for frame in frames] == list(range(FPS))
    assert 0.8 < frames[-1].monotonic - frames[0].monotonic < 1.5


@pytest.mark.parametrize(
    ("content", "reason"), [(None, Reason.BAD_SOURCE), (b"not a video at all" * 100, Reason.CODEC)]
)
def test_a_file_that_is_no_video_is_told(tmp_path, content, reason):
    path = tmp_path / "clip.mp4"
    if content is not None:
        path.write_bytes(content)
    with Watch(str(path), retry=30) as watch:
        watch.wait_for_state(CameraState.UNSUPPORTED, reason)
