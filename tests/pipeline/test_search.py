"""Search on SQLite's FTS5 and, where there is a server, PostgreSQL's tsvector."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.config.engine import StoreConfig
from pipeline.messages import CropKind, EventState, TrackPhase
from pipeline.store import BadCursor, DescriptionMeta, EventFilter, EventStore
from tests.pipeline.material import crop_of, jpeg_of, track_of

T0 = 1_764_435_336.5
LETTERS = st.characters(categories=("L", "Nd"), max_codepoint=0x24F)
META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9)


def add(store: EventStore, number: int, words: str, *, camera: str = "front", label: str = "person", **meta) -> str:
    """An ended event with these words, ``number`` seconds after T0."""
    track, seen, crop_id = f"{camera}/a-{number}", T0 + number, f"{camera}-{number}"
    changed = {name: meta.get(name, getattr(META, name)) for name in META.__slots__}
    store.add_crop(crop_of(crop_id, camera=camera, track=track, label=label, time=seen), jpeg_of(number))
    store.begin_description(crop_id)
    store.finish_description(crop_id, words, DescriptionMeta(**changed))
    end = track_of(TrackPhase.END, camera=camera, track=track, label=label, first_seen=seen, last_seen=seen + 1)
    return store.apply_track(end).id


def found(store: EventStore, text: str = "", **where) -> list[str]:
    return [event.id for event in store.list_events(EventFilter(text=text, **where)).events]


CASES = [
    ("red", [1, 2]),
    ("RED coat", [1]),
    ("coat red", [1]),
    ('"red coat"', [1]),
    ('"coat red"', []),
    ('"red jacket', [2]),
    ("jack*", [2, 3]),
    ("jack", []),
    ("jäck* -hat", [2]),
    ("jackchen", [3]),
    ("Jäckchen", [3]),
    ("JA\u0308CKCHEN", [3]),
    ("7", [4]),
    ("70", []),
    ("number 42", [4]),
    ("blue-white", [4]),
    ("white-blue", []),
    ("-red", [3, 4]),
    ("red -coat -jacket", []),
    ("a", [1, 2, 4]),
    ("*", [1, 2, 3, 4]),
    ("' OR 1=1 --", []),
    ('red" coat', [1]),
    ("NEAR(red coat)", []),
    ("tags:red", []),
]


def test_words_phrases_prefixes_numbers_and_diacritics(any_store):
    ids = [
        add(any_store, 1, "A person in a red coat."),
        add(any_store, 2, "A person in a red jacket, 1 of 3."),
        add(any_store, 3, "Jemand in Jäckchen und hat (nothing)."),
        add(any_store, 4, "A blue-white shirt with number 42, bus 7."),
    ]
    expected = {text: [ids[n - 1] for n in reversed(hits)] for text, hits in CASES}
    assert {text: found(any_store, text) for text, _ in CASES} == expected


def test_filters_by_camera_time_zone_attributes_label_and_state(any_store):
    red = {"upper": {"garment": "coat", "colour": "dark red"}, "carries": ["bag"]}
    a = add(any_store, 1, "Someone.", attributes=red)
    b = add(any_store, 2, "Someone.", camera="yard", attributes={"upper": {"colour": "blue"}})
    c = add(any_store, 3, "Someone.", label="dog")
    d = any_store.apply_track(track_of(TrackPhase.START, track="front/active", first_seen=T0 + 4, last_seen=T0 + 5)).id

    assert found(any_store, "someone") == [c, b, a]
    assert found(any_store, "someone", camera="front") == [c, a]
    assert found(any_store, label="dog") == [c]
    assert found(any_store, label="cat") == []
    assert found(any_store, attributes=(("upper.colour", "red"),)) == [a]
    assert found(any_store, attributes=(("upper.colour", "Dark Red"), ("carries", "bag"))) == [a]
    assert found(any_store, attributes=(("upper.colour", "red"), ("carries", "umbrella"))) == []
    assert found(any_store, "coat") == [a], "words of attributes are found as words too"
    assert found(any_store, state=EventState.ACTIVE) == [d]
    assert found(any_store, state=EventState.ENDED, camera="yard") == [b]
    assert found(any_store, since=T0 + 2) == [d, c, b]
    assert found(any_store, "someone", since=T0 + 2, until=T0 + 3) == [b]
    assert found(any_store, since=T0 + 2, until=T0 + 3) == [b]
    assert found(any_store, camera="front", until=T0 + 3) == [a]
    assert any_store.get(a).to_api()["attributes"] == red
    assert any_store.get(c).to_api()["attributes"] is None


def test_an_events_zones_are_a_filter_once_it_has_some(any_store):
    a, b = add(any_store, 1, "Someone."), add(any_store, 2, "Someone.")
    seen = track_of(TrackPhase.UPDATE, track=any_store.get(a).track, first_seen=T0 + 1, last_seen=T0 + 2)
    any_store.apply_track(replace(seen, zones=("gate",)))
    any_store.apply_track(replace(seen, zones=("gate", "path")))
    any_store.apply_track(replace(seen, zones=("gate",)))

    assert found(any_store, zone="gate") == [a]
    assert found(any_store, "someone", zone="path") == [a]
    assert found(any_store, zone="Gate") == []
    assert found(any_store, "someone") == [b, a]
    assert any_store.get(a).to_api()["zones"] == ["gate", "path"], "late news takes none away"


def test_a_crop_that_comes_before_its_track_brings_its_zones(any_store):
    any_store.add_crop(crop_of("early", track="front/z-1", zones=("gate",), time=T0), jpeg_of(1))

    assert found(any_store, zone="gate") == ["front.z-1"]


def test_the_index_follows_new_words_states_times_and_deletion(any_store):
    event_id = add(any_store, 1, "A person in red.")
    any_store.add_crop(crop_of("f", track="front/a-1", kind=CropKind.FINAL, time=T0 + 2), jpeg_of(9))
    any_store.begin_description("f")
    any_store.finish_description("f", "A person in green.", META)
    assert (found(any_store, "red"), found(any_store, "green")) == ([], [event_id])

    later = add(any_store, 5, "A person in green.")
    assert found(any_store, "green") == [later, event_id]
    any_store.apply_track(track_of(TrackPhase.UPDATE, track="front/a-5", first_seen=T0 - 5, last_seen=T0))
    assert found(any_store, "green") == [event_id, later], "it was seen earlier than thought"

    any_store.pruner.delete([event_id], T0 + 1e6)
    assert found(any_store, "green") == [later]


def test_pages_of_a_search_neither_repeat_nor_miss_an_event(any_store):
    ids = [add(any_store, n // 3, f"Person {n} in red.", camera=f"c{n}") for n in range(17)]  # three at the same time
    seen, cursor = [], None
    for number in range(9):
        page = any_store.list_events(EventFilter(text="red"), before=cursor, limit=4)
        seen += [event.id for event in page.events]
        add(any_store, 100 + number, "A new person in red.")
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == 17 and set(seen) == set(ids)
    times = [any_store.get(event_id).first_seen for event_id in seen]
    assert times == sorted(times, reverse=True)


def test_a_cursor_of_the_other_list_is_refused(any_store):
    for n in range(3):
        add(any_store, n, "red")
    timeline = any_store.list_events(limit=1).next
    search = any_store.list_events(EventFilter(text="red"), limit=1).next
    with pytest.raises(BadCursor):
        any_store.list_events(EventFilter(text="red"), before=timeline)
    with pytest.raises(BadCursor):
        any_store.list_events(before=search)
    for cursor in ("", "WzEsMl0", "W3RydWVd", "Wy0xXQ", "W2JhZF0", "WzFlNTAwXQ", "WzkyMjMzNzIwMzY4NTQ3NzU4MDhd"):
        with pytest.raises(BadCursor):
            any_store.list_events(EventFilter(text="red"), before=cursor)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("ab ä\"'*-+^():{}[]&|!<>\\%_;.,\0\n~#/NOT☃٣") | st.characters(), max_size=40))
def test_no_text_breaks_a_query(any_store, text):
    """Against the real parsers: whatever somebody types is answered, never an error of the database."""
    any_store.list_events(EventFilter(text=text, attributes=((text, text),), label=text, zone=text))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(words=["plate", "3e7x0", "08e3x", "1e5", "0x2xh"])  # PostgreSQL's parser sees numbers in them
@given(words=st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=4))
def test_what_was_written_is_found_by_its_words_its_phrase_and_its_beginnings(any_store, words):
    text = " ".join(words)
    event_id = add(any_store, 1, text)
    any_store.ask_description(event_id, 1e12, force=True)
    any_store.finish_description("front-1", text, META)
    for query in (text, f'"{text}"', f"{words[-1][:2]}*", text.upper()):
        assert event_id in found(any_store, query), query


def test_words_that_no_database_takes_are_stored_without_them(any_store):
    event_id = add(any_store, 1, "red\0coat\ud800 bag")
    assert found(any_store, '"red coat" bag') == [event_id]
    assert any_store.get(event_id).description == "red\ufffdcoat? bag"


def test_fts5_agrees_with_its_content_after_many_changes(tmp_path):
    """FTS5's own integrity check, against the table that the triggers follow."""
    store = EventStore(StoreConfig(data_dir=tmp_path))
    ids = [add(store, n, f"Person {n} in colour {n % 7}.") for n in range(60)]
    for n in range(0, 60, 3):
        store.ask_description(ids[n], 1e12, force=True)
        store.finish_description(f"front-{n}", f"Another colour {n}.", META)
    store.pruner.delete(ids[:25], T0 + 1e6)
    store.close()
    with sqlite3.connect(tmp_path / "watchword.db", isolation_level=None) as connection:
        connection.execute("INSERT INTO event_search(event_search, rank) VALUES ('integrity-check', 1)")
        assert connection.execute("SELECT count(*) FROM event_texts").fetchone() == (35,)
        # The row numbers are the index's own: VACUUM must not change them.
        connection.execute("VACUUM")
        connection.execute("INSERT INTO event_search(event_search, rank) VALUES ('integrity-check', 1)")
