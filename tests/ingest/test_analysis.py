"""From boxes to messages: which crops are sent, when, and what the end of a track says."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ingest.analysis import CameraAnalysis
from ingest.counts import DropCounts
from ingest.frame import Frame
from ingest.observation import ObservationKind
from ingest.preview import PreviewBoard
from ingest.track import TrackNames
from pipeline.config import CameraConfig, WatchwordConfig
from pipeline.messages import CropKind, CropMessage, TrackMessage, TrackPhase
from pipeline.reasons import Reason
from tests.ingest.helpers import FakeClock

BOX = (223.0, 404.0, 346.0, 861.0)


class Outbox:
    def __init__(self) -> None:
        self.sent: list[TrackMessage | CropMessage] = []
        self.jpegs: list[bytes] = []

    def track(self, message: TrackMessage) -> None:
        self.sent.append(message)

    def crop(self, message: CropMessage, jpeg: bytes, extras: tuple[bytes, ...] = ()) -> None:
        self.sent.append(message)
        self.jpegs.append(jpeg)

    @property
    def tracks(self) -> list[TrackMessage]:
        return [m for m in self.sent if isinstance(m, TrackMessage)]

    @property
    def crops(self) -> list[CropMessage]:
        return [m for m in self.sent if isinstance(m, CropMessage)]


class Scene:
    def __init__(self, **sections) -> None:
        self.clock = FakeClock()
        self.outbox = Outbox()
        self.drops = DropCounts()
        self.observed = []
        self.number = 0
        camera = CameraConfig(id="front", url="rtsp://127.0.0.1/x", fps=5)
        self.previews = PreviewBoard(self.clock)
        self.analysis = CameraAnalysis(
            camera,
            WatchwordConfig(cameras=(camera,), **sections),
            TrackNames(self.clock.now()),
            self.outbox,
            self.previews,
            self.drops,
            self.clock,
            self.observed.append,
        )

    def show(self, image: np.ndarray, *boxes, score: float = 0.9) -> None:
        self.clock.advance(0.2)
        self.number += 1
        rows = np.array([(*box, score) for box in boxes], dtype=np.float32).reshape(-1, 5)
        frame = Frame("front", self.number, image, self.clock.now(), self.clock.monotonic(), 1)
        self.analysis.frame(frame, rows, "person", 0.03)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.analysis.tick(self.clock.monotonic())


@pytest.fixture(scope="module")
def sharp(photograph) -> np.ndarray:
    return photograph("bus.jpg")


@pytest.fixture(scope="module")
def blurred(sharp) -> np.ndarray:
    return cv2.GaussianBlur(sharp, (0, 0), 8)


def test_an_early_crop_is_sent_while_the_person_is_in_view(sharp):
    scene = Scene()
    for _ in range(12):
        scene.show(sharp, BOX)

    start, crop, *rest = scene.outbox.sent
    assert isinstance(start, TrackMessage)
    assert start.phase is TrackPhase.START
    assert isinstance(crop, CropMessage)
    assert crop.kind is CropKind.EARLY
    assert [m.phase for m in rest] == [TrackPhase.UPDATE] * len(rest)
    assert crop.track == start.track
    assert crop.camera == "front"
    assert crop.deadline == pytest.approx(scene.clock.now() + 120, abs=3)
    assert (crop.frame_width, crop.frame_height) == (810, 1080)
    assert crop.crop_id == f"{start.track.replace('/', '.')}.early"
    assert crop.picture_key == f"ww:crop:{crop.crop_id}"
    decoded = cv2.imdecode(np.frombuffer(scene.outbox.jpegs[0], np.uint8), cv2.IMREAD_COLOR)
    assert decoded.shape[:2] == (crop.height, crop.width)


def test_r33_a_long_visit_is_one_start_one_crop_one_end(sharp):
    scene = Scene()
    for _ in range(42):
        scene.show(sharp, BOX)
    scene.wait(5)

    phases = [m.phase for m in scene.outbox.tracks if m.phase is not TrackPhase.UPDATE]
    assert phases == [TrackPhase.START, TrackPhase.END]
    assert len(scene.outbox.crops) == 1
    end = scene.outbox.tracks[-1]
    assert (end.reason, end.final_crop) == (Reason.TRACK_LOST, False)
    assert end.last_seen == pytest.approx(end.time - 5)


def test_a_clearly_better_shot_makes_a_final_crop_before_the_end(sharp, blurred):
    scene = Scene()
    for _ in range(12):
        scene.show(blurred, BOX)
    for _ in range(6):
        scene.show(sharp, BOX)
    scene.wait(5)

    early, final = scene.outbox.crops
    assert (early.kind, final.kind) == (CropKind.EARLY, CropKind.FINAL)
    assert final.quality >= early.quality + 0.15
    assert final.frame_id == 13
    assert scene.outbox.sent[-2:] == [final, scene.outbox.tracks[-1]]
    assert scene.outbox.tracks[-1].final_crop


def test_a_slightly_better_shot_is_not_worth_a_second_description(sharp):
    scene = Scene()
    for score in (0.8,) * 12 + (0.95,) * 6:
        scene.show(sharp, BOX, score=score)
    scene.wait(5)

    assert [crop.kind for crop in scene.outbox.crops] == [CropKind.EARLY]


def test_who_left_before_an_early_crop_gets_a_final_one(sharp):
    scene = Scene()
    for _ in range(4):
        scene.show(sharp, BOX)
    scene.wait(5)

    assert [crop.kind for crop in scene.outbox.crops] == [CropKind.FINAL]
    assert scene.outbox.tracks[-1].final_crop


def test_who_is_too_small_to_be_cropped_has_an_event_without_a_crop(sharp):
    scene = Scene()
    for _ in range(12):
        scene.show(sharp, (100, 100, 120, 140))
    scene.wait(5)

    assert scene.outbox.crops == []
    assert scene.outbox.tracks[-1].final_crop is False


def test_who_stays_for_long_gets_an_end_before_the_next_start(sharp):
    scene = Scene(tracking={"max_duration_s": 5})
    for _ in range(40):
        scene.show(sharp, BOX)

    phases = [m.phase for m in scene.outbox.tracks if m.phase is not TrackPhase.UPDATE]
    assert phases == [TrackPhase.START, TrackPhase.END, TrackPhase.START]
    assert len({m.track for m in scene.outbox.tracks}) == 2
    assert {crop.track for crop in scene.outbox.crops} == {m.track for m in scene.outbox.tracks}


def test_shutdown_ends_everybody(sharp):
    scene = Scene()
    for _ in range(5):
        scene.show(sharp, BOX, (48, 397, 238, 903))
    scene.analysis.end_all(Reason.SHUTDOWN)

    ends = [m for m in scene.outbox.tracks if m.phase is TrackPhase.END]
    assert len(ends) == 2
    assert {m.reason for m in ends} == {Reason.SHUTDOWN}
    assert scene.analysis.counts.in_view == 0


def test_invalid_boxes_are_counted_and_people_too(sharp):
    scene = Scene()
    for _ in range(5):
        scene.show(sharp, BOX, (50, 50, 50, 50), (float("inf"), 0, 10, 10))

    assert scene.drops.totals() == {"box_invalid": 10}
    assert scene.analysis.counts.detections == 5
    assert scene.analysis.counts.in_view == 1
    assert scene.analysis.counts.detector_ms == pytest.approx(30)


def test_previews_are_made_only_for_who_watches(sharp):
    scene = Scene()
    scene.show(sharp, BOX)
    assert scene.previews.take() == []
    scene.previews.watch("front")
    for _ in range(5):
        scene.show(sharp, BOX)

    (preview,) = scene.previews.take()
    assert preview.frame.number == scene.number
    assert [mark.text for mark in preview.marks] == ["person 1  0.90"]


def test_what_is_observed(sharp):
    scene = Scene()
    for _ in range(12):
        scene.show(sharp, BOX)
    scene.wait(5)

    assert [o.kind for o in scene.observed] == [
        ObservationKind.PERSON_SEEN,
        ObservationKind.CROP,
        ObservationKind.PERSON_LEFT,
    ]
    assert {o.camera for o in scene.observed} == {"front"}
    assert len({o.track for o in scene.observed}) == 1


def test_a_published_crop_is_announced_at_once_and_to_the_end(sharp):
    scene = Scene()
    for _ in range(12):
        scene.show(sharp, BOX)
    scene.wait(30)

    start, crop, update, *_ = scene.outbox.sent
    assert start.crop_id is None
    assert update.phase is TrackPhase.UPDATE
    assert update.crop_id == crop.crop_id
    assert scene.outbox.tracks[-1].phase is TrackPhase.END
    assert scene.outbox.tracks[-1].crop_id == scene.outbox.crops[-1].crop_id
