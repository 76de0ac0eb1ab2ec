"""The event store on a real SQLite file."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from pipeline.config.engine import StoreConfig
from pipeline.messages import CropKind, DescriptionState, EventState, TrackPhase
from pipeline.reasons import Reason
from pipeline.store import BadCursor, DescriptionMeta, EventFilter, EventStore, UnknownCrop
from pipeline.store.schema import DescriptionRow
from tests.pipeline.material import crop_of, jpeg_of, track_of

META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9)
T0 = 1_764_435_336.5


def described(store: EventStore, crop_id: str, words: str):
    store.begin_description(crop_id)
    return store.finish_description(crop_id, words, META)


def test_r49_the_state_goes_from_queued_over_draft_to_final_on_one_event(store):
    states = [store.apply_track(track_of(TrackPhase.START)).description_state]
    states.append(store.add_crop(crop_of("e"), jpeg_of(1)).description_state)
    states.append(store.begin_description("e").description_state)
    states.append(store.finish_description("e", "A person in red.", META).description_state)
    ended = store.apply_track(track_of(TrackPhase.END, reason=Reason.TRACK_LOST, final_crop=True))
    states.append(ended.description_state)
    states.append(store.add_crop(crop_of("f", kind=CropKind.FINAL), jpeg_of(2)).description_state)
    states.append(store.begin_description("f").description_state)
    record = store.finish_description("f", "A person in a red coat with a bag.", META)
    states.append(record.description_state)

    assert states == ["queued", "queued", "running", "draft", "draft", "draft", "draft", "final"]
    assert record.description == "A person in a red coat with a bag."
    assert record.id == "front.a-1"
    assert store.list_events().events == (record,), "one event all along"


def test_the_early_words_are_final_when_the_track_ends_without_a_final_crop(store):
    store.apply_track(track_of(TrackPhase.START))
    store.add_crop(crop_of("e"), jpeg_of())
    described(store, "e", "A person in red.")

    record = store.apply_track(track_of(TrackPhase.END, reason=Reason.TRACK_LOST))

    assert (record.state, record.description_state, record.description) == ("ended", "final", "A person in red.")


def test_the_early_words_are_final_also_when_they_come_after_the_end(store):
    store.add_crop(crop_of("e"), jpeg_of())
    store.begin_description("e")
    assert store.apply_track(track_of(TrackPhase.END)).description_state == DescriptionState.RUNNING

    assert store.finish_description("e", "A person.", META).description_state == DescriptionState.FINAL


def test_r56_an_error_is_a_state_with_a_reason_and_never_words(store):
    store.add_crop(crop_of("e"), jpeg_of())
    store.begin_description("e")

    record = store.fail_description("e", Reason.ENGINE_ERROR, expired=False)

    assert (record.description_state, record.description) == (DescriptionState.FAILED, None)
    shown = record.to_api()
    assert (shown["description"], shown["reason"]) == (None, "engine_error")
    assert shown["reason_text"] == "The engine failed on this crop."
    assert store.fail_description("e", Reason.DEADLINE, expired=True).description_state == DescriptionState.EXPIRED


def test_r55_the_same_entry_delivered_twice_changes_nothing(store, tmp_path):
    for _ in range(2):
        store.apply_track(track_of(TrackPhase.START, time=T0, first_seen=T0, last_seen=T0))
        store.add_crop(crop_of("e", time=T0), jpeg_of())
    described(store, "e", "The first words.")

    store.add_crop(crop_of("e", time=T0), jpeg_of())
    assert store.begin_description("e") is None, "described already"
    record = store.finish_description("e", "Other words.", META)
    failed = store.fail_description("e", Reason.ENGINE_ERROR, expired=False)

    assert record.description == failed.description == "The first words."
    assert failed.description_state == DescriptionState.DRAFT
    assert len(store.list_events().events) == 1
    assert store._database.read(lambda session: len(session.scalars(select(DescriptionRow)).all())) == 1
    assert len(list((tmp_path / "data" / "crops").rglob("*.jpg"))) == 1


def test_a_crop_may_come_before_the_start_of_its_track(store):
    first = store.add_crop(crop_of("e", time=T0 + 2), jpeg_of())
    assert (first.state, first.first_seen, first.last_seen) == (EventState.ACTIVE, T0 + 2, T0 + 2)

    record = store.apply_track(track_of(TrackPhase.START, time=T0 + 1, first_seen=T0, last_seen=T0 + 1))

    assert (record.first_seen, record.last_seen) == (T0, T0 + 2)


def test_an_update_that_comes_after_the_end_does_not_revive_the_event(store):
    store.apply_track(track_of(TrackPhase.START, first_seen=T0, last_seen=T0))
    store.apply_track(track_of(TrackPhase.END, first_seen=T0, last_seen=T0 + 9, reason=Reason.TRACK_LOST))

    record = store.apply_track(track_of(TrackPhase.UPDATE, first_seen=T0, last_seen=T0 + 5))

    assert (record.state, record.last_seen, record.end_reason) == (EventState.ENDED, T0 + 9, Reason.TRACK_LOST)


def test_r67_a_track_that_ends_with_the_process_is_interrupted(store):
    record = store.apply_track(track_of(TrackPhase.END, reason=Reason.SHUTDOWN, last_seen=T0))

    assert (record.state, record.end_reason, record.last_seen) == (EventState.INTERRUPTED, Reason.SHUTDOWN, T0)


def test_events_that_nobody_updates_are_interrupted_with_their_true_last_seen(store):
    store.apply_track(track_of(TrackPhase.START, first_seen=T0, last_seen=T0 + 4))
    ended = store.apply_track(track_of(TrackPhase.END, track="front/a-2"))

    assert store.interrupt_open_events(untouched_since=time.time() - 60) == []
    [record] = store.interrupt_open_events(untouched_since=time.time() + 1)

    assert (record.state, record.last_seen) == (EventState.INTERRUPTED, T0 + 4)
    assert store.get(ended.id) == ended
    again = store.apply_track(track_of(TrackPhase.UPDATE, first_seen=T0, last_seen=T0 + 6))
    assert (again.state, again.end_reason) == (EventState.ACTIVE, None), "news of it: it goes on"


def test_words_that_cannot_come_any_more_are_not_waited_for(store):
    store.apply_track(track_of(TrackPhase.END, track="front/lost", final_crop=True))
    store.add_crop(crop_of("e", track="front/early"), jpeg_of())
    described(store, "e", "A person.")
    store.apply_track(track_of(TrackPhase.END, track="front/early", final_crop=True))
    store.add_crop(crop_of("dead", track="front/dead", deadline=T0), jpeg_of())
    store.begin_description("dead")
    store.apply_track(track_of(TrackPhase.END, track="front/dead"))
    store.apply_track(track_of(TrackPhase.START, track="front/active"))

    assert store.expire_waiting(untouched_since=time.time() - 60, deadline_before=T0 - 60) == []
    changed = store.expire_waiting(untouched_since=time.time() + 1, deadline_before=T0 + 1)

    outcome = {event.id: (event.description_state, event.description, event.reason) for event in changed}
    assert outcome == {
        "front.lost": (DescriptionState.EXPIRED, None, Reason.NO_PICTURE),
        "front.early": (DescriptionState.FINAL, "A person.", Reason.NONE),
        "front.dead": (DescriptionState.EXPIRED, None, Reason.DEADLINE),
    }
    assert store.expire_waiting(untouched_since=time.time() + 1, deadline_before=T0 + 1) == []
    late = described(store, "dead", "Words after all.")
    assert (late.description_state, late.description) == (DescriptionState.FINAL, "Words after all.")


def test_r59_words_picture_box_and_score_are_of_the_same_crop(store):
    early = crop_of("e", box=(1.0, 2.0, 3.0, 4.0), score=0.5, frame_id=10)
    final = crop_of("f", kind=CropKind.FINAL, box=(5.0, 6.0, 7.0, 8.0), score=0.9, frame_id=20, quality=0.9)
    store.add_crop(early, jpeg_of(1))
    described(store, "e", "Early words.")
    store.add_crop(final, jpeg_of(2))

    shown = store.get("front.a-1").to_api()
    assert (shown["description"], shown["box"], shown["score"], shown["frame_id"]) == (
        "Early words.",
        [1.0, 2.0, 3.0, 4.0],
        0.5,
        10,
    )
    assert store.crop_path("front.a-1").read_bytes() == jpeg_of(1)

    shown = described(store, "f", "Final words.").to_api()
    assert (shown["description"], shown["box"], shown["score"], shown["frame_id"]) == (
        "Final words.",
        [5.0, 6.0, 7.0, 8.0],
        0.9,
        20,
    )
    assert store.crop_path("front.a-1").read_bytes() == jpeg_of(2)


def test_what_the_api_shows(store):
    store.apply_track(track_of(TrackPhase.START, time=T0, first_seen=T0, last_seen=T0))
    bare = store.get("front.a-1").to_api()
    assert (bare["crop_url"], bare["model"], bare["box"]) == (None, None, [10.0, 20.0, 58.0, 116.0])

    store.add_crop(crop_of("e", time=T0 + 1), jpeg_of())
    shown = described(store, "e", "A person in red.").to_api()

    assert shown | {"created": 0, "updated": 0} == {
        "id": "front.a-1",
        "camera": "front",
        "label": "person",
        "state": "active",
        "description_state": "draft",
        "description": "A person in red.",
        "reason": None,
        "reason_text": None,
        "end_reason": None,
        "first_seen": "2025-11-29T16:55:36.500+00:00",
        "last_seen": "2025-11-29T16:55:37.500+00:00",
        "crop_url": "/api/events/front.a-1/crop.jpg",
        "crop_id": "e",
        "crop_kind": "early",
        "crop_time": "2025-11-29T16:55:37.500+00:00",
        "crop_size": [48, 96],
        "box": [10.0, 20.0, 58.0, 116.0],
        "score": 0.8,
        "quality": 0.5,
        "frame_id": 7,
        "frame_size": [640, 480],
        "model": "tiny",
        "image_tokens": None,
        "zones": [],
        "attributes": None,
        "rules": [],
        "created": 0,
        "updated": 0,
    }


def test_a_crop_whose_picture_was_gone_has_an_event_without_picture(store):
    store.add_crop(crop_of("e"), None)
    record = store.fail_description("e", Reason.PICTURE_EXPIRED, expired=True)

    assert (record.description_state, record.reason) == (DescriptionState.EXPIRED, Reason.PICTURE_EXPIRED)
    assert record.to_api()["crop_url"] is None
    assert store.crop_path(record.id) is None
    assert store.get("nobody") is None
    assert store.crop_path("nobody") is None
    for call in (store.begin_description, lambda crop: store.finish_description(crop, "x", META)):
        with pytest.raises(UnknownCrop):
            call("never-added")


def test_pages_are_newest_first_and_neither_repeat_nor_miss_one_while_new_events_come(store):
    for n in range(25):
        seen = T0 + n // 5  # several at the very same time
        camera = "front" if n % 2 else "back"
        store.apply_track(
            track_of(TrackPhase.START, camera=camera, track=f"{camera}/a-{n:02}", first_seen=seen, last_seen=seen)
        )
    for n in range(0, 25, 3):
        camera = "front" if n % 2 else "back"
        store.apply_track(track_of(TrackPhase.END, camera=camera, track=f"{camera}/a-{n:02}", first_seen=T0 + n // 5))

    seen_ids: list[str] = []
    cursor = None
    for page_number in itertools.count():
        page = store.list_events(before=cursor, limit=4)
        seen_ids += [event.id for event in page.events]
        store.apply_track(track_of(TrackPhase.START, track=f"front/new-{page_number}", first_seen=T0 + 100))
        cursor = page.next
        if cursor is None:
            break

    assert len(seen_ids) == len(set(seen_ids)) == 25
    assert seen_ids == [
        event.id for event in store.list_events(limit=100).events if not event.id.startswith("front.new")
    ]
    fronts = store.list_events(EventFilter(camera="front", state=EventState.ENDED), limit=100).events
    assert {event.id for event in fronts} == {f"front.a-{n:02}" for n in range(0, 25, 3) if n % 2}


@pytest.mark.parametrize("cursor", ["", "x", "bnVsbA", "W10", "WzEsMl0", "☃", "W3RydWUsImEiXQ", "A" * 10_000])
def test_a_made_up_cursor_is_refused(store, cursor):
    with pytest.raises(BadCursor):
        store.list_events(before=cursor)


@pytest.mark.parametrize("limit", [0, -1, 501])
def test_a_limit_out_of_range_is_refused_with_the_numbers(store, limit):
    with pytest.raises(ValueError, match="500"):
        store.list_events(limit=limit)


def test_events_are_there_after_a_restart(tmp_path):
    config = StoreConfig(data_dir=tmp_path / "data")
    before = EventStore(config)
    before.add_crop(crop_of("e"), jpeg_of())
    record = described(before, "e", "A person.")
    before.close()

    after = EventStore(config)
    assert after.get(record.id) == record
    assert after.crop_path(record.id).read_bytes() == jpeg_of()
    after.close()


def test_any_sqlalchemy_url_but_memory(tmp_path):
    url = f"sqlite:///{tmp_path}/other.db"
    EventStore(StoreConfig(url=url, data_dir=tmp_path / "data")).close()
    assert (tmp_path / "other.db").exists()
    with pytest.raises(ValueError, match="memory"):
        EventStore(StoreConfig(url="sqlite://", data_dir=tmp_path / "data"))


def test_sqlite_runs_in_wal_mode_with_foreign_keys(store):
    def pragma(name: str) -> object:
        return store._database.read(lambda session: session.execute(text(f"PRAGMA {name}")).scalar())

    assert pragma("journal_mode") == "wal"
    assert pragma("foreign_keys") == 1
    assert pragma("busy_timeout") == 10_000


def test_r70_twenty_parallel_writers_lose_nothing(store, tmp_path):
    other = EventStore(StoreConfig(data_dir=tmp_path / "data"))  # as a second process has it: no shared lock
    start = threading.Barrier(20)

    def write(n: int) -> None:
        mine = store if n % 2 else other
        start.wait()
        for round_number in range(5):
            track = f"front/a-{round_number}"  # all write the same five events
            mine.apply_track(track_of(TrackPhase.UPDATE, track=track, last_seen=T0 + n, first_seen=T0 - n))
            crop_id = f"c-{round_number}-{n}"
            mine.add_crop(crop_of(crop_id, track=track, time=T0), jpeg_of(n))
            described(mine, crop_id, f"words {n}")

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(write, range(20)))

    events = other.list_events().events
    assert len(events) == 5
    assert {(event.first_seen, event.last_seen) for event in events} == {(T0 - 19, T0 + 19)}
    assert store._database.read(lambda session: len(session.scalars(select(DescriptionRow)).all())) == 100
    other.close()
    with sqlite3.connect(tmp_path / "data" / "watchword.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


KILLED = """
import sys, time
from pathlib import Path
from pipeline.config.engine import StoreConfig
from pipeline.messages import TrackPhase
from pipeline.store import EventStore
from tests.pipeline.material import crop_of, jpeg_of
store = EventStore(StoreConfig(data_dir=Path(sys.argv[1])))
for n in range(100000):
    store.add_crop(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
    print(n, flush=True)
"""


def test_a_killed_writer_leaves_whole_events_and_whole_pictures(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert process.stdout is not None
    stored = -1
    for line in process.stdout:
        stored = int(line)
        if stored == 30:
            process.kill()
    process.wait()

    store = EventStore(StoreConfig(data_dir=tmp_path / "data"))
    assert stored >= 30
    for n in range(stored + 1):
        assert store.crop_path(f"front.a-{n}").read_bytes() == jpeg_of(n)
    store.close()


def test_a_write_that_fails_stores_nothing_and_the_next_one_works(store, tmp_path):
    with sqlite3.connect(tmp_path / "data" / "watchword.db") as connection:
        connection.execute("ALTER TABLE crops RENAME TO hidden")
        with pytest.raises(OperationalError) as caught:
            store.add_crop(crop_of("secret-crop"), jpeg_of())
        connection.execute("ALTER TABLE hidden RENAME TO crops")

    assert "secret-crop" not in str(caught.value), "values stay out of errors"
    assert store.get("front.a-1") is None, "no event without its crop"
    assert store.add_crop(crop_of("secret-crop"), jpeg_of()).crop is not None


def news() -> list[tuple[str, Callable[[EventStore], object]]]:
    """All news of one event, each as a call that may be repeated."""
    early, final = crop_of("e", time=T0 + 1), crop_of("f", kind=CropKind.FINAL, time=T0 + 4)
    start = track_of(TrackPhase.START, time=T0, first_seen=T0, last_seen=T0 + 1)
    update = track_of(TrackPhase.UPDATE, time=T0 + 3, first_seen=T0, last_seen=T0 + 3)
    end = track_of(TrackPhase.END, time=T0 + 8, first_seen=T0, last_seen=T0 + 6, final_crop=True)
    return [
        ("start", lambda store: store.apply_track(start)),
        ("update", lambda store: store.apply_track(update)),
        ("end", lambda store: store.apply_track(end)),
        ("early", lambda store: (store.add_crop(early, jpeg_of(1)), described(store, "e", "early"))),
        ("final", lambda store: (store.add_crop(final, jpeg_of(2)), described(store, "f", "final"))),
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(5)), again=st.lists(st.integers(0, 4), max_size=4))
def test_news_in_any_order_and_more_than_once_make_the_same_event(tmp_path_factory, order, again):
    store = EventStore(StoreConfig(data_dir=tmp_path_factory.mktemp("store")))
    for n in [*order, *again]:
        news()[n][1](store)

    [event] = store.list_events().events
    store.close()
    assert (event.state, event.description_state, event.description) == ("ended", "final", "final")
    assert (event.first_seen, event.last_seen) == (T0, T0 + 6)
    assert event.crop.crop_id == "f"
