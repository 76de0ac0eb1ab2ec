"""Retention by age, label and size; stray files; and that nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from pipeline.clock import SystemClock
from pipeline.config.engine import StoreConfig
from pipeline.config.retention import RetentionConfig
from pipeline.housekeeper import Housekeeper, Tally
from pipeline.messages import TrackPhase
from pipeline.reasons import Reason
from pipeline.store import DescriptionMeta, EventFilter, EventStore
from pipeline.store.crop_files import GRACE_S
from pipeline.store.pruning import GIB
from pipeline.store.schema import CropRow, DescriptionRow, EventRow, EventTextRow
from tests.pipeline.material import crop_of, jpeg_of, track_of

DAY = 86_400.0
NOW = 1_764_435_336.5
META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9, system="s", question="q")
AGE_ONLY = RetentionConfig(days=30, max_gib=None)


class At(SystemClock):
    """It is always NOW."""

    def now(self) -> float:
        return NOW


def add(store: EventStore, number: int, *, days: float, label: str = "person", jpeg: bytes | None = None) -> str:
    """A described event that ended so many days before NOW, with an old file."""
    seen, track = NOW - days * DAY, f"front/a-{number}"
    jpeg = jpeg or picture_of(number)
    crop = crop_of(f"c-{number}", track=track, label=label, time=seen, deadline=seen + 120)
    store.add_crop(crop, jpeg)
    store.begin_description(crop.crop_id)
    store.finish_description(crop.crop_id, f"Person {number} in red.", META)
    end = track_of(TrackPhase.END, track=track, label=label, first_seen=seen, last_seen=seen)
    event_id = store.apply_track(end).id
    age_file(store.crop_path(event_id))
    return event_id


def picture_of(number: int) -> bytes:
    """All different, all of one size: bytes after the end of a JPEG are allowed."""
    return jpeg_of() + number.to_bytes(4)


def age_file(path: Path, by: float = GRACE_S + 60) -> None:
    os.utime(path, (time.time() - by,) * 2)


def ids(store: EventStore) -> set[str]:
    return {event.id for event in store.list_events(limit=500).events}


def files(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "data" / "crops").rglob("*.jpg"))


def planned(store: EventStore, config: RetentionConfig) -> dict[str, str]:
    return {event.id: event.reason.value for event in store.pruner.plan(config, NOW)}


def test_by_age_and_label_only_what_is_listed_goes_with_all_that_belongs_to_it(any_store, tmp_path):
    old, young = add(any_store, 1, days=31), add(any_store, 2, days=29)
    dog, old_dog = add(any_store, 3, days=31, label="dog"), add(any_store, 4, days=91, label="dog")
    cat = add(any_store, 5, days=3000, label="cat")
    config = RetentionConfig(days=30, max_gib=None, labels={"dog": 90, "cat": None})

    assert planned(any_store, config) == {old: "age", old_dog: "age"}
    pictures = {any_store.crop_path(event_id) for event_id in (old, old_dog)}
    pruned = any_store.pruner.delete([old, old_dog, "nobody"], NOW)

    assert pruned.events == 2 and pruned.bytes == 2 * len(picture_of(1))
    assert ids(any_store) == {young, dog, cat}
    assert not any(path.exists() for path in pictures) and len(files(tmp_path)) == 3

    def counts(session):
        return [
            session.scalar(select(func.count()).select_from(row))
            for row in (EventRow, CropRow, DescriptionRow, EventTextRow)
        ]

    assert any_store._database.read(counts) == [3, 3, 3, 3]
    assert len(any_store.list_events(EventFilter(text="red")).events) == 3
    assert planned(any_store, RetentionConfig(days=None, max_gib=None)) == {}


def test_what_is_active_or_waits_for_words_stays(any_store):
    active, waiting, asked = (add(any_store, n, days=100) for n in (1, 2, 3))
    any_store.apply_track(
        track_of(TrackPhase.START, track="front/b-1", first_seen=NOW - 90 * DAY, last_seen=NOW - 90 * DAY)
    )
    late = crop_of("late", track="front/a-2", time=NOW - 100 * DAY, deadline=NOW + 60)
    any_store.add_crop(late, jpeg_of(7))
    any_store.ask_description(asked, time.time() + 600, force=True)

    assert planned(any_store, AGE_ONLY) == {active: "age"}
    assert any_store.pruner.delete([active, waiting, asked, "front.b-1"], NOW).events == 1, "looked at again"
    assert ids(any_store) == {waiting, asked, "front.b-1"}


def test_by_size_the_oldest_go_until_there_is_room(any_store):
    size = len(picture_of(1))
    events = [add(any_store, n, days=20 - n) for n in range(20)]
    old = add(any_store, 50, days=99)
    limit = RetentionConfig(days=30, max_gib=15 * size / GIB)

    plan = planned(any_store, limit)

    # 21 pictures; one goes by age; of 20, six must go to come below 95 % of 15.
    assert plan == {old: "age"} | {event: "size" for event in events[:6]}
    assert planned(any_store, RetentionConfig(days=None, max_gib=22 * size / GIB)) == {}


def test_a_picture_that_another_event_shows_stays(any_store, tmp_path):
    same = jpeg_of(3)
    old, young = add(any_store, 1, days=31, jpeg=same), add(any_store, 2, days=1, jpeg=same)
    assert len(files(tmp_path)) == 1
    assert any_store.pruner.delete([old], NOW).bytes == 0
    assert any_store.crop_path(young).read_bytes() == same
    assert any_store.pruner.delete([young], NOW).bytes == len(same)
    assert files(tmp_path) == set()


def test_r69_stray_files_go_after_a_grace_and_nothing_else(any_store, tmp_path):
    """A crash between file and row, or between row and file, leaves files; a restart finds them."""
    event_id = add(any_store, 1, days=1)
    folder = any_store.crop_path(event_id).parent
    stray, half, fresh = folder / f"{'0' * 64}.jpg", folder / ".new-x.jpg", folder / f"{'1' * 64}.jpg"
    foreign, notes = folder / "holiday.jpg", tmp_path / "data" / "crops" / "notes"
    for path in (stray, half, fresh, foreign):
        path.write_bytes(b"x" * 10)
    notes.mkdir()
    (notes / f"{'2' * 64}.jpg").write_bytes(b"x")
    for path in (stray, half, foreign, notes / f"{'2' * 64}.jpg"):
        age_file(path)

    keeper, seen, tally = Housekeeper(any_store, AGE_ONLY), Tally(), Tally()
    asyncio.run(keeper.sweep_orphans(seen, dry_run=True))
    assert (seen.orphans, seen.bytes) == (2, 20) and stray.exists()
    asyncio.run(keeper.sweep_orphans(tally))

    assert (tally.orphans, tally.bytes) == (2, 20)
    assert not stray.exists() and not half.exists()
    assert fresh.exists() and foreign.exists() and len(list(notes.iterdir())) == 1
    assert any_store.crop_path(event_id) is not None


def test_a_picture_that_comes_again_while_its_file_is_about_to_go_is_kept(any_store, tmp_path):
    """The list of strays is old by the time they are deleted: a crop may have named one since."""
    picture = any_store._files.add(jpeg_of(1))
    path = any_store._files.path(picture.sha256)
    age_file(path)
    [strays] = [paths for paths in any_store.pruner.orphans() if paths]
    assert [file.name for file in strays] == [path.name]

    any_store._files.add(jpeg_of(1))  # the crop's row comes later
    assert any_store.pruner.delete_orphans(strays) == 0 and path.exists()
    any_store.add_crop(crop_of("e"), jpeg_of(1))
    age_file(path)
    assert any_store.pruner.delete_orphans(strays) == 0 and path.exists(), "a row names it by now"


def test_pictures_that_come_and_go_at_once_are_never_lost(tmp_path):
    """Deleting and adding the same few pictures from several threads: each event that is there has its picture."""
    store = EventStore(StoreConfig(data_dir=tmp_path / "data"))
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            for path in files(tmp_path):
                try:
                    age_file(path)
                except FileNotFoundError:
                    continue
            for paths in store.pruner.orphans():
                store.pruner.delete_orphans(paths)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for n in range(60):
            event_id = add_quickly(store, n)
            if n % 2:
                store.pruner.delete([event_id], time.time() + 1e6)
    finally:
        stop.set()
        sweeper.join()
    kept = ids(store)
    assert len(kept) == 30
    assert all(store.crop_path(event_id) is not None for event_id in kept)
    store.close()


def add_quickly(store: EventStore, number: int) -> str:
    """One of three pictures, and the row after it."""
    track = f"front/q-{number}"
    store.add_crop(crop_of(f"q-{number}", track=track, deadline=NOW), jpeg_of(number % 3))
    return store.apply_track(track_of(TrackPhase.END, track=track)).id


async def test_in_the_background_it_deletes_in_batches_and_sees_to_old_pictures(any_store):
    for n in range(25):
        add(any_store, n, days=40 + n)
    young = add(any_store, 99, days=1)

    def forget_sizes(session):
        for crop in session.scalars(select(CropRow)):
            crop.bytes = None

    any_store._database.write(forget_sizes)
    config = RetentionConfig(days=30, max_gib=1, batch=4, every_s=3600)
    task = asyncio.create_task(Housekeeper(any_store, config, At()).run())
    while await asyncio.to_thread(ids, any_store) != {young}:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    task.cancel()

    sizes = any_store._database.read(lambda session: session.scalars(select(CropRow.bytes)).all())
    assert sizes == [len(picture_of(99))]


async def test_a_writer_waits_for_one_batch_at_most(tmp_path):
    """Between any two batches the lock is free: a write that begins then is done before the next batch."""
    store = EventStore(StoreConfig(data_dir=tmp_path / "data"))
    other = EventStore(StoreConfig(data_dir=tmp_path / "data"))  # as a second process has it
    for n in range(12):
        add(store, n, days=40)
    left: list[int] = []
    delete = store.pruner.delete

    def delete_then_write(batch, now):
        pruned = delete(batch, now)
        writer = threading.Thread(
            target=other.apply_track, args=(track_of(TrackPhase.START, track=f"front/w-{len(left)}"),)
        )
        writer.start()
        writer.join()
        left.append(len(store.pruner.plan(AGE_ONLY, NOW)))
        return pruned

    store.pruner.delete = delete_then_write  # type: ignore[method-assign]
    keeper = Housekeeper(store, RetentionConfig(days=30, max_gib=None, batch=4), At())
    await keeper.prune(await keeper.plan(), Tally())
    assert left == [8, 4, 0]
    assert ids(store) == {f"front.w-{n}" for n in range(3)}
    other.close()
    store.close()


@pytest.mark.parametrize("words", ["days", "max_gib"])
def test_limits_must_be_more_than_zero(words):
    with pytest.raises(ValueError, match="greater than 0"):
        RetentionConfig(**{words: 0})


def test_a_failed_event_goes_as_well(any_store):
    any_store.add_crop(crop_of("e", time=NOW - 40 * DAY, deadline=NOW - 40 * DAY), None)
    any_store.fail_description("e", Reason.PICTURE_EXPIRED, expired=True)
    any_store.apply_track(track_of(TrackPhase.END, first_seen=NOW - 40 * DAY, last_seen=NOW - 40 * DAY))
    assert planned(any_store, AGE_ONLY) == {"front.a-1": "age"}
