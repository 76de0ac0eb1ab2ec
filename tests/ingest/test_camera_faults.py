"""What goes wrong with RTSP cameras, one case after another, against the RTSP server with faults."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from itertools import accumulate, pairwise, takewhile
from urllib.parse import quote

import pytest

from ingest.backoff import Backoff
from ingest.demo_camera import Access, Credentials, DemoCamera, Faults
from ingest.frame import Frame
from ingest.motion import MotionGate
from pipeline.config import MotionConfig
from pipeline.messages import CameraState
from pipeline.reasons import Reason
from tests.ingest.conftest import FPS
from tests.ingest.helpers import NoisyClip, NumberedClip, ShiftedClock, number_of, wait_for
from tests.ingest.watch import Watch, online

PATIENT = {"open_timeout_s": 20, "first_frame_timeout_s": 30, "stall_timeout_s": 30}
"""For tests in which nothing may time out, on a busy machine either."""


# -- Connecting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "state", "reason"),
    [
        ({"DESCRIBE": 404}, CameraState.UNREACHABLE, Reason.NOT_FOUND),
        ({"DESCRIBE": 401}, CameraState.AUTH_FAILED, Reason.AUTH),
        ({"SETUP": 401}, CameraState.AUTH_FAILED, Reason.AUTH),
        ({"DESCRIBE": 403}, CameraState.AUTH_FAILED, Reason.AUTH),
        ({"DESCRIBE": 500}, CameraState.UNREACHABLE, Reason.STREAM_ENDED),
        ({"DESCRIBE": 503}, CameraState.UNREACHABLE, Reason.BUSY),
        ({"SETUP": 453}, CameraState.UNREACHABLE, Reason.BUSY),
        ({"SETUP": 461}, CameraState.TRANSPORT_REFUSED, Reason.TRANSPORT),
    ],
)
def test_each_refusal_has_its_state_and_reason(demo, fault, state, reason):
    camera = demo(faults=Faults(status_at=fault))
    with Watch(camera.url, retry=30) as watch:
        health = watch.wait_for_state(state, reason)
    assert health.next_retry > health.since
    assert watch.slot.frames == []


@pytest.mark.parametrize("verb", ["OPTIONS", "DESCRIBE", "SETUP", "PLAY"])
def test_r01_a_camera_that_hangs_at_any_verb_is_unreachable_and_then_comes(demo, verb):
    camera = demo(faults=Faults(hang_at=frozenset([verb])))
    with Watch(camera.url, open_timeout_s=0.5, first_frame_timeout_s=30, stall_timeout_s=30) as watch:
        watch.wait_for_state(CameraState.UNREACHABLE, Reason.TIMEOUT)
        camera.faults.hang_at = frozenset()
        watch.wait_for_state(CameraState.ONLINE)


def test_a_camera_that_hangs_at_teardown_does_not_keep_its_reader(demo):
    camera = demo(faults=Faults(hang_at=frozenset(["TEARDOWN"])))
    with Watch(camera.url, **PATIENT) as watch:
        watch.wait_for_frames(1)
        assert watch.reader.stop(10)
    wait_for(lambda: camera.clients == 0, 30, "end of the session")


def test_a_codec_that_nobody_knows_is_unsupported(demo):
    camera = demo(faults=Faults(codec_name="UNHEARD-OF"))
    with Watch(camera.url, retry=30) as watch:
        watch.wait_for_state(CameraState.UNSUPPORTED, Reason.CODEC)


def test_r04_a_camera_that_refuses_costs_the_others_nothing_and_the_log_little(demo, free_port, caplog):
    caplog.set_level(logging.INFO, "ingest.camera")
    one, two = demo(), demo()
    with (
        Watch(f"rtsp://127.0.0.1:{free_port}/x", retry=0.005) as bad,
        Watch(one.url, **PATIENT) as good,
        Watch(two.url, **PATIENT) as other,
    ):
        good.wait_for_frames(25)
        other.wait_for_frames(25)
        wait_for(lambda: bad.reader._backoff.failures >= 60, 30, "sixty attempts")
        lines = [record for record in caplog.records if "connection_refused" in record.getMessage()]
        attempts = bad.reader._backoff.failures
    assert 1 <= len(lines) <= 1 + attempts // 20, "the first, and every twentieth with the count"
    assert "(20 times)" in lines[1].getMessage()
    backoff = Backoff()
    first_minute = list(takewhile(lambda passed: passed < 60, accumulate(backoff.next_delay() for _ in range(100))))
    assert 1 + len(first_minute) // 20 <= 5, "lines of a minute at the real back-off"
    for watch in (good, other):
        assert watch.reader.health().reconnects == 0
        assert [health.state for health in watch.states] == [CameraState.ONLINE, CameraState.STOPPING]


def test_r08_a_camera_can_be_watched_before_it_is_there(free_port):
    with Watch(f"rtsp://127.0.0.1:{free_port}/demo", **PATIENT) as watch:
        refused = watch.wait_for_state(CameraState.UNREACHABLE, Reason.REFUSED)
        assert refused.next_retry is not None
        camera = DemoCamera(NumberedClip(FPS), fps=FPS, gop=5, port=free_port)
        camera.start()
        try:
            watch.wait_for_state(CameraState.ONLINE)
            assert watch.reader.health().reconnects == 0, "it came for the first time"
            assert watch.reader.health().next_retry is None
        finally:
            camera.stop()


def test_r10_fifty_connections_leave_no_descriptor_thread_or_process_behind(demo):
    camera = demo(source=NumberedClip(50), fps=50, gop=1)
    with Watch(camera.url, retry=0.001, **PATIENT) as watch:
        watch.wait_for_frames(1)
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        children = {child.pid for child in multiprocessing.active_children()}  # of other tests' servers
        for cycle in range(50):
            camera.close_clients()
            wait_for(lambda cycle=cycle: camera.counts.requests["PLAY"] >= cycle + 2, 30, "played again")
        watch.wait_for_frames(1)
        wait_for(lambda: camera.clients == 1, 30, "one session")
        # One connection more or less may be in the making.
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
        assert threading.active_count() <= threads
        assert {child.pid for child in multiprocessing.active_children()} <= children


def test_r12_refused_credentials_are_one_try_a_minute(demo):
    camera = demo(access=Access(Credentials("viewer", "right")))
    with Watch(camera.url, username="viewer", password="wrong-one") as watch:
        health = watch.wait_for_state(CameraState.AUTH_FAILED, Reason.AUTH)
        assert health.next_retry - health.since > 59
        assert camera.counts.connections == 1
        assert camera.counts.requests["DESCRIBE"] <= 2, "without and with the password"


@pytest.mark.parametrize("scheme", ["basic", "digest"])
@pytest.mark.parametrize("password", ["p@ss", "a:b", "#1", "who?", "50%", "a/b", "!^&;=+$,", "Türklingel", " s p "])
def test_r14_every_password_opens_the_camera_that_has_it(demo, scheme, password):
    camera = demo(source=NumberedClip(50), fps=50, gop=1, access=Access(Credentials("us er", password), scheme))
    with Watch(camera.url, username="us er", password=password, **PATIENT) as watch:
        watch.wait_for_state(CameraState.ONLINE)


@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_r14_credentials_may_be_in_the_url_already_quoted(demo, scheme):
    camera = demo(access=Access(Credentials("admin", "p@s/s#"), scheme))
    with Watch(camera.url.replace("://", f"://admin:{quote('p@s/s#', safe='')}@"), **PATIENT) as watch:
        watch.wait_for_state(CameraState.ONLINE)


def test_r12_a_password_that_is_asked_for_in_the_middle_is_told(demo):
    """A camera whose password is changed refuses at the next connection."""
    camera = demo()
    with Watch(camera.url, **PATIENT) as watch:
        watch.wait_for_frames(1)
        camera.faults.status_at = {"DESCRIBE": 401}
        camera.close_clients()
        watch.wait_for_state(CameraState.AUTH_FAILED, Reason.AUTH)


def test_r20_a_title_that_is_no_text_does_no_harm(demo):
    camera = demo(faults=Faults(title=b"\xc3\xa4\xff\xc3"))
    with Watch(camera.url, **PATIENT) as watch:
        watch.wait_for_frames(3)


def test_a_camera_with_room_for_one_is_busy_until_there_is_room(demo):
    camera = demo(faults=Faults(max_viewers=1))
    with Watch(camera.url, **PATIENT) as first, Watch(camera.url, retry=0.1, **PATIENT) as second:
        wait_for(lambda: {Reason.BUSY} & {h.reason for w in (first, second) for h in w.states}, 30, "one is refused")
        loser, winner = (first, second) if any(h.reason is Reason.BUSY for h in first.states) else (second, first)
        winner.wait_for_state(CameraState.ONLINE)
        assert winner.reader.stop(10)
        loser.wait_for_state(CameraState.ONLINE)


# -- UDP -------------------------------------------------------------------------------------------------------------


def test_udp_by_choice(demo):
    camera = demo(transports=("udp",))
    with Watch(camera.url, transport="udp", **PATIENT) as watch:
        watch.wait_for_frames(10)
        numbers = [number_of(frame.image) for frame in watch.slot.frames]
    assert numbers == sorted(set(numbers))
    wait_for(lambda: camera.clients == 0, 30, "end of the session")
    assert camera.counts.teardowns == 1


@pytest.mark.parametrize(("wanted", "offered"), [("udp", "tcp"), ("tcp", "udp")])
def test_a_transport_that_is_refused_is_told_and_nothing_else_tried(demo, wanted, offered):
    camera = demo(transports=(offered,))
    with Watch(camera.url, transport=wanted, retry=30) as watch:
        watch.wait_for_state(CameraState.TRANSPORT_REFUSED, Reason.TRANSPORT)
    assert camera.counts.requests["PLAY"] == 0


def test_a_stall_over_udp_is_noticed_and_survived(demo):
    camera = demo(transports=("udp",))
    with Watch(camera.url, transport="udp", open_timeout_s=20, first_frame_timeout_s=30) as watch:
        watch.wait_for_frames(3)
        camera.stall()
        watch.wait_for_state(CameraState.STALLED, Reason.NO_FRAMES)
        camera.resume()
        watch.wait_for_frames(3)


def test_r21_lost_datagrams_taint_until_the_next_keyframe(demo):
    camera = demo(source=NoisyClip(FPS), gop=10)
    with Watch(camera.url, transport="udp", **PATIENT) as watch:
        watch.wait_for_frames(1)
        camera.faults.loss = 0.01
        wait_for(lambda: watch.drops.totals().get("frame_tainted", 0) >= 20, 60, "tainted frames")
        camera.faults.loss = 0.0
        watch.wait_for_frames(5, 60)
        assert watch.reader.health().reconnects == 0


# -- Pictures and their times ----------------------------------------------------------------------------------------


def test_r21_with_forty_percent_of_the_pictures_damaged_none_of_a_tainted_group_is_handed_on(demo):
    camera = demo(source=NoisyClip(FPS), gop=10)
    camera.faults.corrupt = 0.4
    with Watch(camera.url, **{**PATIENT, "first_frame_timeout_s": 120}) as watch:
        wait_for(lambda: watch.drops.totals().get("frame_tainted", 0) >= 60, 60, "tainted frames")
        wait_for(lambda: len(watch.slot.frames) >= 5, 60, "a frame before the damage")
        handed_on = {number_of(frame.image) for frame in list(watch.slot.frames)}
        assert watch.reader.health().reconnects == 0
    tainted: set[int] = set()
    spoilt = False
    for picture in list(camera.counts.sent):
        spoilt = picture.damaged or (spoilt and not picture.keyframe)
        if spoilt:
            tainted.add(picture.index)
    assert len(tainted) > 60
    assert len(handed_on & tainted) <= 0.02 * len(tainted), "libav tells of nearly every slice damaged in CAVLC"


@pytest.mark.parametrize("sizes", [[(640, 360), (640, 368), (360, 640)]])
def test_r22_the_size_changes_in_mid_stream_and_the_camera_runs_on(demo, sizes):
    camera = demo()
    with Watch(camera.url, **PATIENT) as watch:
        watch.wait_for_frames(3)
        for size in sizes:
            camera.faults.size = size
            wait_for(
                lambda size=size: (watch.slot.frames[-1].width, watch.slot.frames[-1].height) == size, 30, str(size)
            )
            health = watch.reader.health()
            assert (health.width, health.height) == size
        assert watch.reader.health().reconnects == 0
        assert camera.counts.connections == 1


@pytest.mark.parametrize("pixel_format", ["yuv422p", "yuv444p", "gray", "yuv420p10le"])
def test_r23_the_pixel_format_changes_in_mid_stream_and_colours_stay(demo, pixel_format):
    camera = demo()
    with Watch(camera.url, **PATIENT) as watch:
        watch.wait_for_frames(3)
        changed_at = camera.index
        camera.faults.pixel_format = pixel_format
        wait_for(lambda: number_of(watch.slot.frames[-1].image) > changed_at + 5, 30, "readable frames")
        assert watch.reader.health().reconnects == 0
        assert online(watch.reader.health())


@pytest.mark.parametrize("jumps", [[3600.0, 1800.0, -7200.0]])
def test_r24_the_cameras_clock_jumps_by_hours_and_ours_goes_on(demo, jumps):
    camera = demo()
    with Watch(camera.url, **PATIENT) as watch:
        watch.wait_for_frames(5)
        for jump in jumps:
            camera.faults.time_shift_s = jump
            watch.wait_for_frames(10)
        frames = list(watch.slot.frames)
        assert watch.reader.health().reconnects == 0
        assert online(watch.reader.health())
    assert all(later.monotonic > earlier.monotonic for earlier, later in pairwise(frames))
    assert frames[-1].time - frames[0].time < 600, "not an hour"


def test_r28_the_same_picture_for_long_is_frozen_and_a_new_one_ends_it(demo):
    camera = demo()
    with Watch(camera.url, frozen_after_s=0.5, **PATIENT) as watch:
        watch.wait_for_frames(3)
        camera.faults.frozen = True
        frozen = watch.wait_for_state(CameraState.FROZEN, Reason.FROZEN)
        assert frozen.next_retry is None, "the connection is fine"
        wait_for(lambda: watch.drops.totals().get("picture_frozen", 0) >= 10, 30, "frames that are not handed on")
        shown = number_of(watch.slot.frames[-1].image)
        camera.faults.frozen = False
        wait_for(lambda: online(watch.reader.health()), 30, "online again")
        watch.wait_for_frames(3)
        assert watch.reader.health().reconnects == 0
        assert camera.counts.connections == 1
    numbers = [number_of(frame.image) for frame in watch.slot.frames]
    assert numbers[-1] > shown


@pytest.mark.parametrize("open_timeout", [0.5, 20.0])
def test_a_keyframe_that_comes_late_is_waited_for(demo, open_timeout):
    """Given a camera that first sends two seconds of pictures which depend on one that was never sent."""
    camera = demo(gop=10, faults=Faults(late_keyframe_s=2.0))
    with Watch(camera.url, **{**PATIENT, "open_timeout_s": open_timeout}) as watch:
        watch.wait_for_frames(3)
        first = number_of(watch.slot.frames[0].image)
        assert watch.reader.health().reconnects == 0
    keyframes = [picture.index for picture in camera.counts.sent if picture.keyframe]
    assert first in keyframes


def test_a_camera_with_less_than_a_frame_a_second_is_online(demo):
    """Given a picture every 1.05 s and a stall timeout of half a second, then three of its periods are waited for."""
    camera = demo(source=NumberedClip(1), fps=0.95, gop=1)
    with Watch(camera.url, open_timeout_s=20, first_frame_timeout_s=30, stall_timeout_s=0.5) as watch:
        watch.wait_for_frames(2)
        assert watch.reader.health().reconnects == 0
        assert [health.state for health in watch.states] == [CameraState.ONLINE]


# -- Idle ------------------------------------------------------------------------------------------------------------


def test_an_idle_camera_decodes_keyframes_only_until_something_moves(demo):
    """Given a motion gate that looks at what is handed on, as the detector's thread does."""
    camera = demo(gop=10)
    gate = MotionGate(MotionConfig(hold_s=0.3, look_every_s=0), lost_s=1)
    with Watch(camera.url, fps=60, idle_after_s=0.4, frozen_after_s=0, **{**PATIENT, "stall_timeout_s": 5}) as watch:

        def look(frame: Frame) -> None:
            gate.wants(frame, in_view=False)
            if gate.is_open(frame.monotonic):
                watch.reader.keep_awake()

        watch.slot.on_frame = look
        watch.wait_for_frames(3)
        assert not watch.reader.health().idle, "the picture moves"
        camera.faults.frozen = True
        wait_for(lambda: watch.reader.health().idle, 30, "idle")
        handed_on, shown = len(watch.slot.frames), camera.index
        wait_for(lambda: camera.index > shown + 40, 60, "forty pictures")
        assert len(watch.slot.frames) - handed_on <= 8, "the keyframes of four or five groups"
        assert len(watch.slot.frames) > handed_on, "those are handed on"
        camera.faults.frozen = False
        wait_for(lambda: not watch.reader.health().idle, 30, "awake")
        woken = len(watch.slot.frames)
        watch.wait_for_frames(15)
        numbers = [number_of(frame.image) for frame in watch.slot.frames[woken:]]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] - numbers[0] < 5 * len(numbers), "not keyframes alone, which are ten apart"
        assert watch.drops.totals().get("frame_tainted", 0) == 0
        assert watch.reader.health().reconnects == 0


def test_a_rest_that_ends_between_two_keyframes_ends_with_whole_pictures_at_once(demo):
    """Given keyframes six seconds apart, then waking takes a moment, and no picture is built on a missing one."""
    gop = 6 * FPS
    camera = demo(gop=gop)
    with Watch(camera.url, fps=60, idle_after_s=0.3, frozen_after_s=0, **PATIENT) as watch:
        watch.slot.on_frame = lambda frame: watch.reader.keep_awake()
        watch.wait_for_frames(3)
        watch.slot.on_frame = lambda frame: None
        wait_for(lambda: watch.reader.health().idle, 30, "rest, although the picture moves")
        rested = len(watch.slot.frames)
        wait_for(lambda: len(watch.slot.frames) > rested, 30, "a keyframe")
        wait_for(lambda: 15 < camera.index % gop < gop / 2, 30, "pictures that are not decoded")
        rested = len(watch.slot.frames)
        watch.slot.on_frame = lambda frame: watch.reader.keep_awake()
        watch.reader.keep_awake()
        watch.wait_for_frames(5)
        numbers = [number_of(frame.image) for frame in watch.slot.frames[rested:]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "every one, and each is readable"
        assert numbers[0] % gop > 5, "no keyframe was waited for"
        assert watch.drops.totals().get("frame_tainted", 0) == 0


def test_a_stream_without_keyframes_is_not_rested_on(demo, monkeypatch):
    """Given a limit of 20 packets and a keyframe after 100, then all is decoded from the twentieth on."""
    monkeypatch.setattr("ingest.decoder.LONGEST_GROUP", 20)
    camera = demo(gop=100)
    with Watch(camera.url, fps=60, idle_after_s=0.01, frozen_after_s=0, **PATIENT) as watch:
        watch.wait_for_frames(30)
        numbers = [number_of(frame.image) for frame in watch.slot.frames]
        assert len({number % 100 for number in numbers}) > 20


def test_somebody_in_view_keeps_a_camera_awake(demo):
    """Given six seconds by the clock between two pictures, and ten until the camera is idle."""
    camera = demo(gop=10, faults=Faults(frozen=True))
    clock = ShiftedClock()
    settings = {**PATIENT, "idle_after_s": 10, "frozen_after_s": 0, "stall_timeout_s": 300}
    with Watch(camera.url, clock=clock, **settings) as watch:
        idle: list[bool] = []
        somebody = True

        def looked_at(frame: Frame) -> None:
            idle.append(watch.reader.health().idle)
            if somebody:
                watch.reader.keep_awake()
            clock.advance_monotonic(6.0)

        watch.slot.on_frame = looked_at
        watch.wait_for_frames(20, timeout=60)
        assert not any(idle[:20])
        somebody = False
        wait_for(lambda: watch.reader.health().idle, 60, "idle when nobody is there any more")
