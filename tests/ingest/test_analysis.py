"""From boxes to messages: which crops are sent, when, and what the end of a track says."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from ingest.analysis import CameraAnalysis
from ingest.counts import DropCounts
from ingest.crop import crop_window, cut
from ingest.frame import Frame
from ingest.observation import ObservationKind
from ingest.preview import PreviewBoard
from ingest.track import TrackNames
from pipeline.config import CameraConfig, CropConfig, WatchwordConfig
from pipeline.messages import CropKind, CropMessage, TrackMessage, TrackPhase
from pipeline.reasons import Reason
from tests.ingest.helpers import FakeClock

BOX = (223.0, 404.0, 346.0, 861.0)


class Outbox:
    def __init__(self) -> None:
        self.sent: list[TrackMessage | CropMessage] = []
        self.jpegs: list[bytes] = []
        self.extras: dict[str, bytes] = {}

    def track(self, message: TrackMessage) -> None:
        self.sent.append(message)

    def crop(self, message: CropMessage, jpeg: bytes, extras: tuple[bytes, ...] = ()) -> None:
        self.sent.append(message)
        self.jpegs.append(jpeg)
        self.extras.update(zip(message.extra_keys, extras, strict=True))

    @property
    def tracks(self) -> list[TrackMessage]:
        return [m for m in self.sent if isinstance(m, TrackMessage)]

    @property
    def crops(self) -> list[CropMessage]:
        return [m for m in self.sent if isinstance(m, CropMessage)]


class Scene:
    def __init__(self, blur: str = "none", zones=(), **sections) -> None:
        self.clock = FakeClock()
        self.outbox = Outbox()
        self.drops = DropCounts()
        self.observed = []
        self.number = 0
        camera = CameraConfig(id="front", url="rtsp://127.0.0.1/x", fps=5, privacy={"blur": blur}, zones=zones)
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

    def show(self, image: np.ndarray, *boxes, score: float = 0.9, seconds: float = 0.2) -> None:
        self.clock.advance(seconds)
        self.number += 1
        rows = np.array([(*box, score, 0) for box in boxes], dtype=np.float32).reshape(-1, 6)
        frame = Frame("front", self.number, image, self.clock.now(), self.clock.monotonic(), 1)
        self.analysis.frame(frame, rows, {0: "person"}, 0.03)

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


def worse(image: np.ndarray) -> np.ndarray:
    return cv2.GaussianBlur(image, (0, 0), 8)


def test_r33_who_gets_clearer_while_in_view_is_sent_once_more_and_not_at_every_frame(sharp, blurred):
    scene = Scene(crops={"refreshes": 1, "refresh_after_s": 3})
    for _ in range(12):
        scene.show(blurred, BOX)
    for _ in range(30):
        scene.show(sharp, BOX)
    scene.wait(5)

    early, refreshed = scene.outbox.crops
    assert (early.kind, refreshed.kind) == (CropKind.EARLY, CropKind.EARLY)
    assert (early.crop_id.rpartition(".")[2], refreshed.crop_id.rpartition(".")[2]) == ("early", "early-2")
    assert refreshed.quality >= early.quality + 0.15
    assert refreshed.deadline - early.deadline >= 3, "when they were sent"
    assert scene.outbox.tracks[-1].final_crop is False, "nothing better came after it"
    assert scene.outbox.tracks[-1].crop_id == refreshed.crop_id
    assert scene.analysis.counts.crops == {"early": 2}


def test_without_refreshes_the_better_picture_comes_at_the_end(sharp, blurred):
    scene = Scene(crops={"refreshes": 0})
    for _ in range(12):
        scene.show(blurred, BOX)
    for _ in range(100):
        scene.show(sharp, BOX)
    scene.wait(5)

    assert [crop.kind for crop in scene.outbox.crops] == [CropKind.EARLY, CropKind.FINAL]
    assert scene.analysis.counts.crops == {"early": 1, "final": 1}


def test_a_better_score_for_the_same_picture_is_no_news_and_counted(sharp):
    scene = Scene()
    for score in (0.36,) * 12 + (0.95,) * 6:
        scene.show(sharp, BOX, score=score)
    scene.wait(5)

    assert [crop.kind for crop in scene.outbox.crops] == [CropKind.EARLY]
    assert scene.drops.totals() == {"same_picture": 1}
    assert scene.outbox.tracks[-1].final_crop is False


def test_r34_a_still_picture_for_two_hours_is_one_description_and_an_end(sharp):
    scene = Scene()
    small = cv2.resize(sharp[380:900, 200:400], (100, 260), interpolation=cv2.INTER_AREA)
    box = (11.0, 12.0, 73.0, 240.0)
    in_view = []
    for _ in range(7200):
        scene.show(small, box, seconds=1.0)
        in_view.append(scene.analysis.counts.in_view)

    assert [crop.kind for crop in scene.outbox.crops] == [CropKind.EARLY]
    phases = [m.phase for m in scene.outbox.tracks if m.phase is not TrackPhase.UPDATE]
    assert phases == [TrackPhase.START, TrackPhase.END]
    assert scene.outbox.tracks[-1].reason is Reason.TRACK_STATIONARY
    assert in_view[1700] == 1 and in_view[-1] == 0


def test_who_moves_about_for_long_is_one_event_with_a_picture_at_checkpoints(photograph):
    """Given somebody who comes nearer and goes away again for a quarter of an hour, slowly."""
    scene = Scene(tracking={"checkpoint_s": 150}, crops={"refreshes": 1})
    bus = photograph("bus.jpg")[380:900, 150:450].copy()
    for second in range(900):
        scale = 0.5 + 0.5 * abs(second % 700 - 350) / 350
        image = np.full((520, 600, 3), 128, dtype=np.uint8)
        part = cv2.resize(bus, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        left = 5 * abs(second % 60 - 30)
        image[: part.shape[0], left : left + part.shape[1]] = part
        box = (left + 73 * scale, 24 * scale, left + 196 * scale, 481 * scale)
        scene.show(image, box, seconds=1.0)

    phases = [m.phase for m in scene.outbox.tracks if m.phase is not TrackPhase.UPDATE]
    assert phases == [TrackPhase.START]
    assert 2 <= len(scene.outbox.crops) <= 1 + 6, "one each checkpoint at most"
    assert len({crop.crop_id for crop in scene.outbox.crops}) == len(scene.outbox.crops)
    assert {crop.kind for crop in scene.outbox.crops} == {CropKind.EARLY}
    (portrait,) = scene.analysis._portraits.values()
    kept = [portrait.shots.first, portrait.shots.best, portrait.shots.last, portrait._sent]
    assert sum(shot.picture.nbytes for shot in kept if shot) < 4 * 640 * 960 * 3


def test_r59_first_best_and_last_picture_are_each_of_the_frame_they_name(sharp):
    """Given somebody who comes blurred, is seen best in the middle and goes on another way."""
    scene = Scene(crops={"early_after_s": 60})
    x1, y1, x2, y2 = (int(v) for v in BOX)
    turned = sharp.copy()
    turned[y1:y2, x1:x2] = sharp[y1:y2, x1:x2][:, ::-1]
    turned = cv2.GaussianBlur(turned, (0, 0), 1.5)
    frames: dict[int, tuple] = {}
    for step, image in enumerate([worse(sharp)] * 8 + [sharp] * 2 + [turned] * 12):
        marked = image.copy()
        marked[y1 + 200 : y1 + 210, x1:x2] = step * 10  # each frame is its own
        scene.show(marked, BOX)
        frames[scene.number] = (marked, scene.clock.now())
    scene.analysis.end_all(Reason.SHUTDOWN)

    (final,) = scene.outbox.crops
    assert final.kind is CropKind.FINAL
    assert final.time == frames[final.frame_id][1]
    assert set(final.extra_keys) <= {f"{final.picture_key}.first", f"{final.picture_key}.last"}
    assert final.extra_keys and len(final.extra_frames) == len(final.extra_keys)
    assert list(final.extra_frames) == sorted(final.extra_frames), "oldest first"
    assert final.frame_id not in final.extra_frames
    assert set(scene.outbox.extras) == set(final.extra_keys)
    window = crop_window(final.box, 810, 1080, CropConfig())
    named = [(final.frame_id, scene.outbox.jpegs[0])]
    named += [(n, scene.outbox.extras[key]) for n, key in zip(final.extra_frames, final.extra_keys, strict=True)]
    for number, jpeg in named:
        decoded = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR).astype(int)
        apart = {n: np.abs(decoded - cut(image, window, 10**7)).mean() for n, (image, _) in frames.items()}
        assert min(apart, key=apart.__getitem__) == number


def test_pictures_that_look_like_the_best_one_are_not_sent_beside_it(sharp):
    scene = Scene(crops={"early_after_s": 60})
    for _ in range(20):
        scene.show(sharp, BOX)
    scene.analysis.end_all(Reason.SHUTDOWN)

    (final,) = scene.outbox.crops
    assert final.extra_keys == final.extra_frames == ()


@pytest.mark.parametrize("blur", ["head", "person"])
def test_stored_pictures_are_covered_for_everybody_in_them(sharp, blur):
    """Given a neighbour whom the detector sees too weakly for a track, their head is covered as well."""
    plain, hidden = Scene(), Scene(blur)
    beside = (48.0, 397.0, 238.0, 903.0)
    for scene in (plain, hidden):
        scene.previews.watch("front")
        for _ in range(12):
            scene.clock.advance(0.2)
            scene.number += 1
            rows = np.array([(*BOX, 0.9, 0), (*beside, 0.15, 0)], dtype=np.float32)
            frame = Frame("front", scene.number, sharp, scene.clock.now(), scene.clock.monotonic(), 1)
            scene.analysis.frame(frame, rows, {0: "person"}, 0.03)

    def picture(scene: Scene) -> np.ndarray:
        return cv2.imdecode(np.frombuffer(scene.outbox.jpegs[0], np.uint8), cv2.IMREAD_COLOR).astype(int)

    (crop,) = hidden.outbox.crops
    left, top, right, _ = crop_window(BOX, 810, 1080, CropConfig())
    difference = np.abs(picture(plain) - picture(hidden)).mean(axis=2)
    own_head = difference[404 - top : 404 - top + 100, 223 - left : 346 - left]
    neighbour = difference[420 - top : 500 - top, : 225 - left]
    assert crop.width == difference.shape[1] == right - left
    assert own_head.mean() > 8
    assert neighbour.mean() > 8
    feet = difference[820 - top : 850 - top, 260 - left : 300 - left]
    assert (feet.mean() > 8) == (blur == "person")
    (preview,) = hidden.previews.take()
    assert len(preview.hidden) >= 2 and preview.blur == blur


# -- Zones -----------------------------------------------------------------------------------------------------------

LEFT_HALF = {"name": "left", "points": [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]}
RIGHT_HALF = {"name": "right", "points": [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]}
RIGHT_BOX = (600.0, 404.0, 720.0, 861.0)


def test_tracks_tell_where_somebody_has_been_and_crops_where_they_were_on_that_frame(sharp):
    scene = Scene(zones=[LEFT_HALF, RIGHT_HALF])
    for _ in range(12):
        scene.show(sharp, BOX)
    scene.wait(5)

    assert scene.outbox.tracks[0].zones == (), "not for long enough yet"
    assert scene.outbox.tracks[-1].zones == ("left",)
    assert [crop.zones for crop in scene.outbox.crops] == [("left",)]


def test_who_never_enters_a_required_zone_makes_no_event(sharp):
    scene = Scene(zones=[{**LEFT_HALF, "required": True}])
    for _ in range(20):
        scene.show(sharp, RIGHT_BOX)
    assert scene.analysis.counts.in_view == 1
    scene.wait(5)

    assert scene.outbox.sent == []
    assert scene.observed == []
    assert scene.analysis.counts.in_view == 0


def test_who_enters_a_required_zone_makes_an_event_that_begins_with_the_first_sight(sharp):
    scene = Scene(zones=[{**LEFT_HALF, "required": True}])
    first = scene.clock.now() + 0.2
    # Near enough to each other that it is one person who moves.
    for step in range(30):
        x = 540 - 16 * step if step < 25 else 140
        scene.show(sharp, (x, 404, x + 120, 861))
    scene.wait(5)

    start, *rest = scene.outbox.sent
    assert start.phase is TrackPhase.START
    assert start.first_seen == pytest.approx(first)
    assert start.last_seen > first + 1.5
    assert start.zones == ("left",)
    assert isinstance(rest[0], CropMessage)
    assert [m.phase for m in scene.outbox.tracks if m.phase is TrackPhase.END] == [TrackPhase.END]


def test_r34_somebody_new_wants_more_frames_until_they_are_an_event_and_again_not_at_rest(sharp):
    """Given a false positive that never moves, then the motion gate is not held open by it for ever."""
    scene = Scene(tracking={"stationary_after_s": 2, "stationary_max_s": 4})
    wanted = []
    for _ in range(40):
        scene.show(sharp, BOX)
        wanted.append(scene.analysis.counts.found)
    scene.wait(10)
    scene.show(sharp, BOX)

    assert wanted == [True] * 2 + [False] * 38
    assert not scene.analysis.counts.found, "a look at what rests"
    assert len([m for m in scene.outbox.tracks if m.phase is TrackPhase.START]) == 1
