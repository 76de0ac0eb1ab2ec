"""What waits while Redis is away."""

from __future__ import annotations

from ingest.buffer import MAX_BYTES, MAX_TRACKS, MessageBuffer, WaitingCrop
from ingest.counts import DropLedger
from pipeline.messages import CropKind, TrackPhase
from pipeline.reasons import Reason
from tests.ingest.helpers import FakeClock
from tests.ingest.messages import crop_message, track_message


class Desk:
    def __init__(self, max_crops: int = 3) -> None:
        self.clock = FakeClock()
        self.drops = DropLedger()
        self.buffer = MessageBuffer(max_crops, self.drops, self.clock.now)

    def crop(self, track: str, kind: CropKind = CropKind.EARLY, deadline: float = 60) -> None:
        self.buffer.put_crop(WaitingCrop(crop_message(track, kind, deadline=self.clock.now() + deadline), b"jpeg"))

    def track(self, track: str, phase: TrackPhase, final_crop: bool = False) -> None:
        self.buffer.put_track(track_message(track, phase, final_crop=final_crop))

    def rest(self) -> list[str]:
        """What comes out, in short."""
        told = []
        while (item := self.buffer.take()) is not None:
            if isinstance(item, WaitingCrop):
                told.append(f"{item.message.track} {item.message.kind}")
            else:
                told.append(f"{item.track} {item.phase}" + " with final" * item.final_crop)
        return told

    def counted(self, camera: str = "front") -> dict[str, int]:
        return self.drops.of(camera).totals()


def test_everything_comes_out_in_its_order():
    desk = Desk()
    desk.track("front/a-1", TrackPhase.START)
    desk.crop("front/a-1")
    desk.track("front/a-1", TrackPhase.END)

    assert desk.rest() == ["front/a-1 start", "front/a-1 early", "front/a-1 end"]
    assert desk.counted() == {}


def test_the_newest_crops_are_kept_and_the_others_counted():
    desk = Desk(max_crops=3)
    for number in range(10):
        desk.crop(f"front/a-{number}")

    assert desk.rest() == ["front/a-7 early", "front/a-8 early", "front/a-9 early"]
    assert desk.counted() == {Reason.BUFFER_FULL: 7}


def test_tracks_are_not_lost_for_the_sake_of_crops():
    desk = Desk(max_crops=1)
    for number in range(5):
        desk.track(f"front/a-{number}", TrackPhase.START)
        desk.crop(f"front/a-{number}")

    assert [line for line in desk.rest() if line.endswith("start")] == [f"front/a-{n} start" for n in range(5)]


def test_a_later_crop_takes_the_place_of_its_own_tracks():
    desk = Desk()
    desk.crop("front/a-1")
    desk.crop("front/a-2")
    desk.crop("front/a-1", CropKind.FINAL)

    assert desk.rest() == ["front/a-2 early", "front/a-1 final"]
    assert desk.counted() == {Reason.SUPERSEDED: 1}


def test_an_end_does_not_promise_a_final_crop_that_was_dropped():
    desk = Desk(max_crops=1)
    desk.crop("front/a-1", CropKind.FINAL)
    desk.track("front/a-1", TrackPhase.END, final_crop=True)
    desk.crop("front/a-2", CropKind.FINAL)
    desk.track("front/a-2", TrackPhase.END, final_crop=True)

    assert desk.rest() == ["front/a-1 end", "front/a-2 final", "front/a-2 end with final"]


def test_crops_past_their_deadline_are_dropped_and_counted():
    desk = Desk()
    desk.crop("front/a-1", CropKind.FINAL, deadline=10)
    desk.track("front/a-1", TrackPhase.END, final_crop=True)
    desk.crop("front/a-2", deadline=100)
    desk.clock.advance(11)

    assert desk.rest() == ["front/a-1 end", "front/a-2 early"]
    assert desk.counted() == {Reason.DEADLINE: 1}


def test_what_is_given_back_is_next_and_within_the_bound():
    desk = Desk(max_crops=1)
    desk.crop("front/a-1")
    taken = desk.buffer.take()
    desk.crop("front/a-2")
    desk.buffer.give_back(taken)

    assert desk.rest() == ["front/a-2 early"], "the newer one of the two"
    assert desk.counted() == {Reason.BUFFER_FULL: 1}


def test_r48_track_messages_are_bounded_and_updates_go_first():
    desk = Desk()
    desk.track("front/a-1", TrackPhase.START)
    for _ in range(MAX_TRACKS - 1):
        desk.track("front/a-1", TrackPhase.UPDATE)
    for number in range(2, 12):
        desk.track(f"front/a-{number}", TrackPhase.START)

    assert desk.buffer.sizes() == (0, MAX_TRACKS)
    assert [line for line in desk.rest() if line.endswith("start")] == [f"front/a-{n} start" for n in range(1, 12)]
    assert desk.counted() == {Reason.BUFFER_FULL: 10}


def test_first_and_last_pictures_count_for_the_bound_in_bytes():
    desk = Desk(max_crops=100)
    part = b"x" * (MAX_BYTES // 9)
    for n in range(5):
        desk.buffer.put_crop(WaitingCrop(crop_message(f"front/a-{n}"), part, (part, part)))

    assert desk.buffer.sizes() == (3, 0)
    assert desk.counted() == {"buffer_full": 2}
    assert desk.rest() == [f"front/a-{n} early" for n in (2, 3, 4)]


def test_one_crop_waits_however_large_it_is():
    desk = Desk()
    desk.buffer.put_crop(WaitingCrop(crop_message("front/a-1"), b"x" * (MAX_BYTES + 1)))

    assert desk.rest() == ["front/a-1 early"]
