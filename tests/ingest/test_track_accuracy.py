"""Events against hand counts: the real detector and tracker on real people (``benchmarks/track_accuracy.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.track_accuracy import (
    HAND_COUNTS,
    Detections,
    HandCount,
    Pass,
    SeenEvent,
    Verdict,
    compare,
    configuration,
    cut_out,
    follow,
    hand_count,
    pictures,
)
from pipeline.messages import TrackPhase

FPS = 5.0
SHORT = (
    "asl_help",
    "asl_walk",
    "classroom_preview",
    "face-demographics-walking-and-pause_preview",
    "face-demographics-walking_preview",
    "people-detection_preview",
    "store-aisle-detection_preview",
    "worker-zone-detection_preview",
)


def run(name: str, shared_data: Path, detector, fps: float = FPS) -> tuple[HandCount, Verdict]:
    count = hand_count(HAND_COUNTS / f"{name}.json")
    video = shared_data / "videos" / count.video
    frames = list(pictures(video, count.fps, fps))
    return count, compare(count, follow(frames, Detections(detector).of(video, frames), configuration(fps)))


def test_short_videos_have_at_most_one_event_a_person_and_pass(shared_data, openvino_detector):
    results = [run(name, shared_data, openvino_detector) for name in SHORT]

    passes = sum(len(count.passes) for count, _ in results)
    assert passes == 17
    assert sum(verdict.at_most_one for _, verdict in results) >= 0.9 * passes
    assert sum(verdict.missed for _, verdict in results) <= 2, "the two that are leaving when the clip begins"
    assert sum(verdict.false for _, verdict in results) == 0
    assert sum(verdict.mixed for _, verdict in results) <= 1


def test_people_who_cross_in_the_street_have_at_most_one_event_each(shared_data, openvino_detector):
    """Twelve passes in 30 s, some behind a lamp post, some arm in arm, one comes back."""
    count, verdict = run("vtest_30s", shared_data, openvino_detector)

    assert verdict.at_most_one >= 0.9 * len(count.passes)
    assert verdict.missed <= 3
    assert verdict.false == 0
    assert verdict.mixed <= 1


@pytest.mark.soak
@pytest.mark.parametrize("fps", [5.0, 10.0])
def test_one_after_another_is_one_event_each(shared_data, openvino_detector, fps):
    count, verdict = run("one-by-one-person-detection", shared_data, openvino_detector, fps)

    assert verdict == Verdict((1,) * len(count.passes), mixed=0, false=0)


def test_r59_what_is_sent_of_real_people_is_of_their_own_frames(shared_data, openvino_detector):
    count = hand_count(HAND_COUNTS / "worker-zone-detection_preview.json")
    video = shared_data / "videos" / count.video
    frames = list(pictures(video, count.fps, FPS))
    album = cut_out(frames, Detections(openvino_detector).of(video, frames), configuration(FPS))

    numbers = {number for number, _, _ in frames}
    assert [message.phase for message in album.tracks if message.phase is not TrackPhase.UPDATE] == [
        TrackPhase.START,
        TrackPhase.END,
    ]
    for message, _ in album.crops:
        assert {message.frame_id, *message.extra_frames} <= numbers


def test_the_comparison_finds_splits_mixtures_misses_and_ghosts():
    left = Pass("left", "left", 0, 5, {0: (100, 100), 50: (100, 100)})
    right = Pass("right", "right", 0, 5, {0: (500, 100), 50: (500, 100)})
    gone = Pass("gone", "gone", 0, 5, {0: (300, 400), 50: (300, 400)})
    count = HandCount("x", 10, 50, (left, right, gone))
    at_left, at_right, nowhere = (60.0, 20.0, 140.0, 180.0), (460.0, 20.0, 540.0, 180.0), (10.0, 300.0, 60.0, 400.0)

    verdict = compare(
        count,
        [
            SeenEvent("a", [(n, at_left) for n in range(10)]),
            SeenEvent("b", [(n, at_left) for n in range(10, 30)] + [(n, at_right) for n in range(30, 40)]),
            SeenEvent("c", [(n, at_right) for n in range(10)]),
            SeenEvent("d", [(n, nowhere) for n in range(10)]),
        ],
    )

    assert verdict == Verdict((2, 1, 0), mixed=1, false=1)
    assert (verdict.at_most_one, verdict.missed) == (2, 1)
