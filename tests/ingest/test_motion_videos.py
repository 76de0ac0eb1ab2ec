"""The motion gate on real people: whom it would lose. Hand counts are those of ``test_track_accuracy.py``."""

from __future__ import annotations

import pytest

from benchmarks.track_accuracy import (
    HAND_COUNTS,
    PERSON,
    START,
    SeenEvent,
    compare,
    configuration,
    follow,
    hand_count,
    pictures,
)
from ingest.detection import check_boxes
from ingest.frame import Frame
from ingest.motion import MotionGate
from ingest.track import TrackNames
from ingest.tracker import PersonTracker

FPS = 5.0
PAUSING = (
    "classroom_preview",
    "face-demographics-walking-and-pause_preview",
    "store-aisle-detection_preview",
    "worker-zone-detection_preview",
)


@pytest.mark.parametrize("name", PAUSING)
def test_nobody_who_walks_and_stops_is_lost_behind_the_gate(name, shared_data, openvino_detector):
    """Given the same answers of the detector, then the events with the gate are as good as those without."""
    count = hand_count(HAND_COUNTS / f"{name}.json")
    frames = list(pictures(shared_data / "videos" / count.video, count.fps, FPS))
    found = openvino_detector.detect([image for _, _, image in frames])
    config = configuration(FPS)
    camera = config.cameras[0]
    gate = MotionGate(camera.motion, config.tracking.lost_s)
    tracker = PersonTracker(camera.id, config.tracking, 0.35, FPS, TrackNames(START))
    events: dict[str, SeenEvent] = {}
    looks = 0
    for (number, seconds, image), rows in zip(frames, found, strict=True):
        frame = Frame("video", number, image, START + seconds, seconds, 1)
        tracker.expire(seconds)
        if not gate.wants(frame, tracker.in_view(seconds) > 0):
            continue
        looks += 1
        people = check_boxes(rows, frame.width, frame.height, 0.0, PERSON).detections
        for track, detection in tracker.update(people, frame.time, seconds, image).seen:
            event = events.setdefault(track.name, SeenEvent(track.name, first_frame=number))
            event.sightings.append((number, detection.box))
            event.last_frame = number
        if sum(person.score >= 0.35 for person in people) > tracker.known(seconds):
            gate.hold(seconds)

    plain, gated = compare(count, follow(frames, found, config)), compare(count, list(events.values()))
    assert gated.missed <= plain.missed
    assert gated.at_most_one >= plain.at_most_one
    assert gated.false <= plain.false
    assert gated.mixed <= plain.mixed
    assert looks <= len(frames)
