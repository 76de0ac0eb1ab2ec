"""Tracks: confirmed, lost, regained, ended; named once and for all."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from ingest.detection import Detection, check_boxes
from ingest.track import TrackChanges, TrackNames
from ingest.tracker import PersonTracker
from pipeline.config import TrackingConfig
from pipeline.reasons import Reason
from tests.ingest.helpers import FakeClock, person

FPS = 5.0
START = 1_700_000_000.0


class Scene:
    """Feeds a tracker frame by frame and keeps what it told."""

    def __init__(self, camera: str = "front", names: TrackNames | None = None, **settings) -> None:
        self.clock = FakeClock(START)
        self.tracker = PersonTracker(camera, TrackingConfig(**settings), 0.35, FPS, names or TrackNames(START))
        self.changes: list[TrackChanges] = []

    def show(self, *people: Detection, seconds: float = 1 / FPS) -> TrackChanges:
        self.clock.advance(seconds)
        changed = self.tracker.update(people, self.clock.now(), self.clock.monotonic())
        self.changes.append(changed)
        return changed

    def wait(self, seconds: float) -> tuple:
        self.clock.advance(seconds)
        ended = self.tracker.expire(self.clock.monotonic())
        self.changes.append(TrackChanges(ended=ended))
        return ended

    @property
    def started(self) -> list[str]:
        return [track.name for change in self.changes for track in change.started]

    @property
    def ended(self) -> list[tuple[str, Reason]]:
        return [(track.name, reason) for change in self.changes for track, reason in change.ended]


def walker(step: int, y: float = 100) -> Detection:
    """Somebody who walks to the right, 40 pixels a second."""
    return person(50 + 8 * step, y, 130 + 8 * step, y + 200)


def test_a_person_becomes_a_track_after_enough_detections():
    scene = Scene(confirm_hits=3)

    starts = [len(scene.show(walker(step)).started) for step in range(6)]

    assert starts == [0, 0, 1, 0, 0, 0]
    assert re.fullmatch(r"front/[0-9a-z]+-1", scene.started[0])


def test_the_first_sighting_counts_though_bytetrack_is_silent_about_it():
    """Given somebody who comes later than the first frame, whom ByteTrack reports from the second detection on."""
    scene = Scene(confirm_hits=3)
    scene.show()
    first_seen = scene.clock.now() + 1 / FPS

    changes = [scene.show(walker(step)) for step in range(3)]

    assert [len(change.started) for change in changes] == [0, 0, 1]
    track = changes[2].started[0]
    assert track.first_seen == pytest.approx(first_seen)
    assert track.hits == 3


def test_a_flicker_is_no_track():
    scene = Scene(confirm_hits=3)
    scene.show(walker(0))
    scene.show(walker(1))
    for _ in range(30):
        scene.show()

    assert scene.started == []
    assert scene.ended == []


def test_the_end_comes_by_the_clock_and_tells_the_true_last_sighting():
    scene = Scene(lost_s=2, rejoin_s=3)
    for step in range(10):
        scene.show(walker(step))
    last_seen = scene.clock.now()

    assert scene.wait(2.9) == ()
    assert scene.tracker.in_view(scene.clock.monotonic()) == 0, "lost, though not ended"
    ((track, reason),) = scene.wait(0.2)

    assert reason is Reason.TRACK_LOST
    assert track.last_seen == last_seen
    assert track.hits == 10


def test_losing_is_measured_in_seconds_not_in_frames():
    """Given a detector that manages one frame a second instead of five, then a gap of two frames is within lost_s."""
    scene = Scene(lost_s=4, rejoin_s=0)
    for _ in range(5):
        scene.show(person(100, 100, 200, 300), seconds=1.0)
    scene.show(seconds=1.0)
    scene.show(seconds=1.0)
    scene.show(person(100, 100, 200, 300), seconds=1.0)

    assert len(scene.started) == 1
    assert scene.ended == []


@pytest.mark.parametrize(
    "missing",
    [range(20, 28), range(10, 58, 6), (12, 13, 22, 23, 32, 33, 42, 43)],
    ids=["at once", "each sixth", "pairs"],
)
def test_r32_eight_of_sixty_detections_missing_is_still_one_track(missing):
    scene = Scene()
    assert len(list(missing)) == 8
    for step in range(60):
        scene.show(*() if step in missing else (walker(step),))

    assert len(scene.started) == 1
    assert scene.ended == []


def test_r32_a_new_track_where_somebody_was_lost_continues_the_old_one():
    """Given a gap so long that ByteTrack itself has started anew, but within the rejoin window."""
    scene = Scene(lost_s=1, rejoin_s=3)
    for _ in range(10):
        scene.show(person(100, 100, 200, 300))
    scene.wait(2.5)
    for _ in range(5):
        scene.show(person(110, 105, 210, 305))

    assert len(scene.started) == 1
    assert scene.ended == []
    assert {track.name for change in scene.changes[-3:] for track, _ in change.seen} == set(scene.started)


def test_who_comes_after_the_rejoin_window_is_somebody_new():
    scene = Scene(lost_s=1, rejoin_s=2)
    for _ in range(10):
        scene.show(person(100, 100, 200, 300))
    scene.wait(2.1)
    for _ in range(5):
        scene.show(person(100, 100, 200, 300))

    assert len(scene.started) == 2
    assert scene.ended == [(scene.started[0], Reason.TRACK_LOST)]


def test_who_comes_elsewhere_or_in_another_size_is_somebody_new():
    scene = Scene(lost_s=1, rejoin_s=3)
    for _ in range(10):
        scene.show(person(100, 100, 300, 460))
    scene.wait(1.5)
    for _ in range(4):
        scene.show(person(400, 100, 500, 300), person(150, 200, 200, 290))

    assert len(scene.started) == 3


def test_two_people_who_pass_each_other_stay_two():
    scene = Scene()
    for step in range(40):
        scene.show(walker(step), person(450 - 8 * step, 130, 530 - 8 * step, 330))

    assert len(scene.started) == 2
    assert scene.ended == []


def test_weak_detections_keep_a_track_but_start_none():
    scene = Scene(lost_s=1, rejoin_s=0)
    for _ in range(5):
        scene.show(person(100, 100, 200, 300, 0.9), person(400, 100, 500, 300, 0.2))
    for _ in range(20):
        scene.show(person(100, 100, 200, 300, 0.2), person(400, 100, 500, 300, 0.2))

    assert len(scene.started) == 1
    assert scene.ended == []


def test_who_stays_for_long_goes_on_under_a_new_name():
    scene = Scene(max_duration_s=10)
    for _ in range(int(25 * FPS)):
        scene.show(person(100, 100, 200, 300))

    assert len(scene.started) == 3
    assert scene.ended == [(name, Reason.TRACK_MAX_DURATION) for name in scene.started[:2]]
    for change in scene.changes:
        assert len(change.seen) <= 1, "never under two names at once"


def test_ending_all_leaves_nothing_behind():
    scene = Scene()
    for step in range(5):
        scene.show(walker(step), person(400, 100, 500, 300))

    ended = scene.tracker.end_all(Reason.SHUTDOWN)

    assert sorted(track.name for track, _ in ended) == sorted(scene.started)
    assert {reason for _, reason in ended} == {Reason.SHUTDOWN}
    assert scene.tracker.end_all(Reason.SHUTDOWN) == ()


def test_r39_one_person_in_two_boxes_is_one_track():
    scene = Scene()
    import numpy as np

    for step in range(6):
        x = 100 + 8 * step
        rows = np.array([[x, 100, x + 100, 300, 0.9], [x + 2, 100, x + 102, 303, 0.6]], dtype=np.float32)
        scene.show(*check_boxes(rows, 640, 480, 0.1, "person").detections)

    assert len(scene.started) == 1


def test_r40_cameras_do_not_share_ids():
    """Given two cameras in turn, one of which starts while people are in view of the other."""
    names = TrackNames(START)
    front, yard = Scene("front", names), Scene("yard", names)
    for step in range(10):
        front.show(walker(step), person(400, 100, 500, 300))
    for step in range(10, 20):
        front.show(walker(step), person(400, 100, 500, 300), *[person(10, 10, 60, 110)] * (step > 12))
        yard.show(walker(step), person(500, 200, 560, 400))

    run = front.started[0].partition("/")[2].partition("-")[0]
    assert front.started == [f"front/{run}-1", f"front/{run}-2", f"front/{run}-3"]
    assert yard.started == [f"yard/{run}-1", f"yard/{run}-2"]
    assert front.ended == yard.ended == []


def test_names_differ_between_runs_and_go_on_within_one():
    first, second = TrackNames(1_700_000_000.000), TrackNames(1_700_000_000.002)

    assert first.next("front") != second.next("front")
    names = [first.next("front") for _ in range(3)]
    assert [name.rpartition("-")[2] for name in names] == ["2", "3", "4"]


def test_r41_memory_does_not_grow_with_the_number_of_people_who_passed():
    """Given a new person every twelve frames, for ever."""
    scene = Scene(lost_s=0.5, rejoin_s=0.5)

    def pass_by(frames: int) -> None:
        for step in range(frames):
            scene.show(*[walker(step % 12, y=10 + 40 * (step // 12 % 5))] * (step % 12 < 6))
            scene.changes.clear()

    # ByteTrack keeps its last thousand removed tracks; what is asked is that there is an end to it.
    tracemalloc.start()
    try:
        pass_by(1_000)
        before, removed_before = tracemalloc.get_traced_memory()[0], _kept(scene)
        pass_by(1_000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert _kept(scene) <= 1010
    per_removed = 6_000 * max(0, _kept(scene) - removed_before)
    assert grown < 200_000 + per_removed


def _kept(scene: Scene) -> int:
    association = scene.tracker._association
    return (association.kept if association else 0) + len(scene.tracker._followed)
