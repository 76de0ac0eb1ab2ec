"""Tracks: confirmed, lost, regained, ended; named once and for all."""

from __future__ import annotations

import re
import resource
import tracemalloc

import cv2
import numpy as np
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

    def show(self, *people: Detection, seconds: float = 1 / FPS, image: np.ndarray | None = None) -> TrackChanges:
        self.clock.advance(seconds)
        changed = self.tracker.update(people, self.clock.now(), self.clock.monotonic(), image)
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
    for step in range(6):
        x = 100 + 8 * step
        rows = np.array([[x, 100, x + 100, 300, 0.9, 0], [x + 2, 100, x + 102, 303, 0.6, 0]], dtype=np.float32)
        scene.show(*check_boxes(rows, 640, 480, 0.1, {0: "person"}).detections)

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


@pytest.mark.soak
def test_r41_after_a_hundred_thousand_updates_the_process_is_no_larger():
    scene = Scene(lost_s=0.5, rejoin_s=0.5)

    def resident_mib() -> float:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() / 2**20

    sizes = []
    for part in range(10):
        for step in range(10_000):
            scene.show(*[walker(step % 12, y=10 + 40 * (step // 12 % 5))] * (step % 12 < 6))
            scene.changes.clear()
        if part >= 1:
            sizes.append(resident_mib())

    assert sizes[-1] - sizes[0] < 3, f"MiB after each 10,000 updates: {sizes}"


def test_who_walks_fast_past_a_slow_detector_is_a_track():
    """Given boxes that overlap by a fifth from one frame to the next, as of a quick walker at 5 frames a second."""
    scene = Scene()
    scene.show()
    for step in range(10):
        scene.show(person(50 + 26 * step, 100, 90 + 26 * step, 220))

    assert len(scene.started) == 1


def dressed(*people: tuple[Detection, tuple[int, int, int]]) -> np.ndarray:
    """A grey picture with people in plain colours (BGR)."""
    image = np.full((480, 640, 3), 120, dtype=np.uint8)
    for detection, colour in people:
        x1, y1, x2, y2 = (int(v) for v in detection.box)
        image[y1:y2, x1:x2] = colour
    return image


RED, BLUE = (40, 40, 200), (200, 80, 40)


def pass_behind_a_post(scene: Scene, *, with_colours: bool) -> dict[str, set[str]]:
    """Somebody in blue goes out of sight beside somebody in red, who then does, too, in front of the one in blue, so
    that the inner tracker takes the one for the other. Returns which tracks each was."""
    tracks: dict[str, set[str]] = {"red": set(), "blue": set()}
    for step in range(40):
        shown = []
        red, blue = person(100 + 4 * step, 100, 160 + 4 * step, 280), person(280 - 4 * step, 104, 340 - 4 * step, 284)
        if not 24 <= step < 32:
            shown.append((red, RED))
        if not 16 <= step < 24:
            shown.append((blue, BLUE))
        if step >= 24:
            shown = [(d, c) for d, c in shown if c == BLUE or step >= 32]
        image = dressed(*shown) if with_colours else None
        changes = scene.show(*(d for d, _ in shown), image=image)
        for track, detection in changes.seen:
            tracks["red" if detection in (d for d, c in shown if c == RED) else "blue"].add(track.name)
    return tracks


def test_two_who_pass_behind_a_post_keep_their_own_tracks_by_their_clothes():
    with_colours = pass_behind_a_post(Scene(), with_colours=True)
    without = pass_behind_a_post(Scene(), with_colours=False)

    assert without["red"] & without["blue"], "boxes alone take the one for the other"
    assert len(with_colours["red"]) == len(with_colours["blue"]) == 1
    assert not with_colours["red"] & with_colours["blue"]


def test_somebody_else_at_the_place_where_one_left_is_somebody_new():
    """Given one in red who leaves, and after a second one in blue who comes the same way."""
    scene = Scene()
    place = person(560, 100, 620, 280)
    for _ in range(6):
        scene.show(place, image=dressed((place, RED)))
    for _ in range(5):
        scene.show(image=dressed())
    for _ in range(6):
        scene.show(place, image=dressed((place, BLUE)))

    assert len(scene.started) == 2


def test_r34_what_never_moves_is_one_event_that_ends():
    """Given a coat on a hook that is taken for a person for two hours, later with gaps of some seconds."""
    scene = Scene(stationary_max_s=1800)
    rng = np.random.default_rng(3)
    in_view = []
    for second in range(7200):
        x, y = rng.normal(0, 2, 2)
        flickers = second > 2000 and second % 60 < 8
        scene.show(*() if flickers else (person(100 + x, 100 + y, 160 + x, 250 + y),), seconds=1.0)
        in_view.append(scene.tracker.in_view(scene.clock.monotonic()))

    assert len(scene.started) == 1
    assert scene.ended == [(scene.started[0], Reason.TRACK_STATIONARY)]
    assert in_view[1700] == 1
    assert not any(in_view[1810:]), "nobody is in view because of it any more"


def test_r34_who_rested_and_moves_is_a_new_event():
    scene = Scene(stationary_max_s=60)
    for _ in range(100):
        scene.show(person(100, 100, 160, 250), seconds=1.0)
    for step in range(40):
        scene.show(person(100 + 4 * step, 100, 160 + 4 * step, 250))

    assert len(scene.started) == 2
    assert [reason for _, reason in scene.ended] == [Reason.TRACK_STATIONARY]


def test_somebody_new_beside_one_that_rests_is_an_event():
    scene = Scene(stationary_max_s=60)
    for _ in range(100):
        scene.show(person(100, 100, 160, 250), seconds=1.0)
    for step in range(40):
        scene.show(person(100, 100, 160, 250), person(500 - 8 * step, 100, 560 - 8 * step, 250))

    assert len(scene.started) == 2


def test_who_walks_about_for_an_hour_is_one_event():
    scene = Scene()
    for second in range(3600):
        x = 100 + 60 * abs(second % 120 - 60) / 10
        scene.show(person(x, 100, x + 80, 300), seconds=1.0)

    assert len(scene.started) == 1
    assert scene.ended == []


def test_botsort_follows_while_the_camera_jerks():
    """Given a camera that turns by more than a person's width at once: only the picture tells that nobody moved."""
    noise = np.random.default_rng(5).integers(0, 255, (48, 200, 3), dtype=np.uint8)
    wall = cv2.resize(noise, (2000, 480), interpolation=cv2.INTER_CUBIC)

    def turn(tracker: str) -> int:
        scene = Scene(tracker=tracker, rejoin_s=0)
        at = 300
        for step in range(24):
            at += 44 if step >= 8 and step % 4 == 0 else 0
            scene.show(person(700 - at, 100, 724 - at, 180), image=wall[:, at : at + 640].copy())
        return len(scene.started)

    assert turn("botsort") == 1
    assert turn("bytetrack") > 1


def _kept(scene: Scene) -> int:
    association = scene.tracker._association
    return (association.kept if association else 0) + len(scene.tracker._followed)
