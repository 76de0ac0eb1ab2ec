"""Deadlines, backlogs and rates of one connection, in a time of their own."""

from __future__ import annotations

import pytest

from ingest.arrival import MAX_DRAIN_S, Arrivals
from ingest.stream_errors import StreamError
from pipeline.config import CameraConfig
from pipeline.reasons import Reason


def arrivals(nominal_fps: float = 25.0, live: bool = True, **settings) -> Arrivals:
    return Arrivals(CameraConfig(id="cam", url="rtsp://h/x", **settings), live, nominal_fps, 100.0)


def test_r30_what_comes_in_a_burst_after_connecting_is_old_and_what_was_waited_for_is_new():
    """Measured: 28 frames within 50 ms, the first of them 3 s old."""
    connection = arrivals()
    assert all(connection.is_backlog(0.002, 100.0 + number * 0.002) for number in range(28))
    assert not connection.is_backlog(0.039, 100.1)
    assert not connection.is_backlog(0.001, 100.101), "jitter is no backlog"


def test_r30_a_camera_that_always_sends_in_bursts_is_used_after_a_while():
    connection = arrivals()
    assert connection.is_backlog(0.0, 100.0 + MAX_DRAIN_S - 0.1)
    assert not connection.is_backlog(0.0, 100.0 + MAX_DRAIN_S + 0.1)


def test_after_a_pause_of_the_network_the_backlog_is_left_out_again():
    connection = arrivals()
    for number in range(20):
        connection.is_backlog(0.04, 100.0 + 0.04 * number)
    now = 105.0
    assert connection.is_backlog(4.2, now), "sent before the pause"
    assert connection.is_backlog(0.001, now + 0.001)
    assert not connection.is_backlog(0.04, now + 0.05)


@pytest.mark.parametrize("nominal_fps", [0.4, 25.0])
def test_a_slow_camera_is_not_taken_for_one_that_pauses(nominal_fps):
    """A frame every 2.5 s, with and without the stream saying so."""
    connection = arrivals(nominal_fps)
    used = [not connection.is_backlog(2.5, 100.0 + 2.5 * number) for number in range(1, 20)]
    assert used[0]
    assert all(used[2:])


def test_a_file_has_no_backlog():
    assert not arrivals(live=False).is_backlog(0.0, 100.0)


def test_r02_the_first_frame_and_every_other_have_deadlines_of_their_own():
    connection = arrivals(first_frame_timeout_s=10, stall_timeout_s=3)
    connection.arrived(105.0)
    connection.check_deadlines(109.9)
    with pytest.raises(StreamError) as late:
        connection.check_deadlines(110.1)
    assert late.value.failure.reason is Reason.FIRST_FRAME_TIMEOUT
    connection.used()
    connection.arrived(111.0)
    connection.check_deadlines(113.9)
    with pytest.raises(StreamError) as stalled:
        connection.check_deadlines(114.1)
    assert stalled.value.failure.reason is Reason.NO_FRAMES


def test_a_slow_camera_has_time_for_three_frames():
    connection = arrivals(nominal_fps=0.1, stall_timeout_s=5)
    connection.used()
    connection.arrived(110.0)
    connection.check_deadlines(139.0)
    with pytest.raises(StreamError):
        connection.check_deadlines(141.0)


@pytest.mark.parametrize(("sent", "wanted"), [(25, 5), (10, 10), (30, 7)])
def test_the_wanted_rate_is_kept_by_arrival(sent, wanted):
    connection = arrivals(fps=wanted)
    due = sum(connection.is_due(100.0 + number / sent) for number in range(20 * sent))
    assert 20 * wanted * 0.95 <= due <= 20 * wanted * 1.05
