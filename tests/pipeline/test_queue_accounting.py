"""Each crop ends as described or as one counted drop, whoever dies or comes late; dead letters may have another go."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from ingest.buffer import MessageBuffer, WaitingCrop
from ingest.counts import DropLedger
from ingest.observation import ignore
from ingest.preview import PreviewBoard
from ingest.publisher import Publisher
from pipeline.clock import SystemClock
from pipeline.config.redis import RedisConfig
from pipeline.messages import CropKind, TrackPhase
from pipeline.queue import keys
from pipeline.queue.crops import CropWriter
from pipeline.queue.dead_letters import Replayed
from pipeline.queue.drops import DoubtfulDrop, DropCounter
from pipeline.queue.hub import CameraHub
from pipeline.reasons import Reason
from pipeline.store import EventStore
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.test_crop_reader import drops, reading, taken
from tests.pipeline.test_describer import describing, remote
from tests.pipeline.test_store import META
from tests.pipeline.waiting import until
from tests.redis_servers import both_servers  # noqa: F401


def outcome(client, crop_id: str) -> bytes | None:
    return client.get(keys.outcome(keys.picture(crop_id)))


@asynccontextmanager
async def hub_of(url: str, config: RedisConfig | None = None):
    hub = CameraHub(url, config or RedisConfig())
    try:
        yield hub
    finally:
        await hub.close()


@pytest.mark.parametrize("end", ["described", "dropped", "superseded"])
async def test_r55_a_publish_repeated_after_the_crop_has_ended_queues_nothing(client, redis_url, redis_config, end):
    writer = CropWriter(client, redis_config)
    message = crop_of("c1")
    writer.publish(message, jpeg_of())
    async with reading(redis_url) as reader:
        match end:
            case "described":
                await reader.settle(await taken(reader))
            case "dropped":
                await reader.give_up(await taken(reader), Reason.DEADLINE)
            case "superseded":
                writer.publish(crop_of("c2"), jpeg_of(2))
                await reader.settle(await taken(reader))
    before = (drops(client), outcome(client, "c1"))

    writer.publish(message, jpeg_of())  # its first reply had got lost

    assert client.xlen(keys.crops("front")) == 0
    assert (drops(client), outcome(client, "c1")) == before


async def test_who_lost_a_crop_to_another_describer_can_not_drop_it(client, redis_url):
    config = RedisConfig(claim_idle_s=1.1)
    CropWriter(client, config).publish(crop_of("c1"), jpeg_of())
    async with reading(redis_url, config, "slow") as slow, reading(redis_url, config, "quick") as quick:
        lost = await taken(slow)
        held = await taken(quick)
        assert held.entry_id == lost.entry_id, "the slow one gave no sign of life"

        await slow.give_up(lost, Reason.ENGINE_BUSY)
        assert await slow.fail(lost) is False
        assert (drops(client), outcome(client, "c1")) == ({}, b"queued")
        assert client.xpending(keys.crops("front"), keys.GROUP)["pending"] == 1
        assert not client.exists(keys.failures("front"))
        assert slow.held == 0

        await quick.settle(held)
        assert (drops(client), outcome(client, "c1")) == ({}, b"described")


async def test_words_that_come_after_the_drop_was_counted_take_it_back(client, redis_url):
    config = RedisConfig(claim_idle_s=1.1)
    CropWriter(client, config).publish(crop_of("c1"), jpeg_of())
    async with reading(redis_url, config, "slow") as slow, reading(redis_url, config, "quick") as quick:
        lost = await taken(slow)
        await quick.give_up(await taken(quick), Reason.ENGINE_BUSY)
        assert drops(client) == {"front|engine_busy": 1}

        await slow.settle(lost)  # it had words after all, and stored them

        assert (drops(client), outcome(client, "c1")) == ({"front|engine_busy": 0}, b"described")
        await slow.settle(lost)
        assert drops(client) == {"front|engine_busy": 0}


async def test_a_described_crop_whose_acknowledgement_was_lost_is_no_drop_when_it_comes_again_too_late(
    client, redis_url, redis_config, store: EventStore, server
):
    CropWriter(client, redis_config).publish(crop_of("c1", deadline=time.time() + 1.5), jpeg_of())
    async with reading(redis_url) as before:  # a process that is killed between storing and acknowledging
        held = await taken(before)
        store.add_crop(held.message, held.jpeg)
    store.finish_description("c1", "A person in red.", META)
    await until(lambda: time.time() > held.message.deadline)

    async with describing(redis_url, store, remote(server)):
        await until(lambda: client.xlen(keys.crops("front")) == 0)

    assert (drops(client), outcome(client, "c1")) == ({}, b"described")


def test_pictures_are_bounded_in_bytes_and_the_sum_follows_what_is_there(client):
    jpeg = bytes(100_000)
    config = RedisConfig(crop_mib_per_camera=0.5)
    writer = CropWriter(client, config)
    for n in range(12):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg)

    assert client.xlen(keys.crops("front")) == 5
    assert int(client.get(keys.crop_bytes("front"))) == 500_000
    assert drops(client) == {"front|queue_full": 7}
    assert [outcome(client, f"c{n}") for n in (6, 7)] == [b"queue_full", b"queued"]

    # Somebody trims the stream: the sum is put right before anything is dropped because of it.
    client.xtrim(keys.crops("front"), maxlen=1, approximate=False)
    writer.publish(crop_of("next", track="front/b"), jpeg)
    assert (client.xlen(keys.crops("front")), drops(client)) == (2, {"front|queue_full": 7})
    assert int(client.get(keys.crop_bytes("front"))) == 200_000


def test_a_picture_over_the_bound_in_bytes_is_queued_alone(client):
    writer = CropWriter(client, RedisConfig(crop_mib_per_camera=0.01))
    for n in range(2):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), bytes(50_000))
    assert (client.xlen(keys.crops("front")), drops(client)) == (1, {"front|queue_full": 1})


async def test_the_sum_of_bytes_ends_with_the_last_crop(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    for n in range(3):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
    async with reading(redis_url) as reader:
        for _ in range(3):
            await reader.settle(await taken(reader))
    assert not client.exists(keys.crop_bytes("front"))


def test_tracks_of_entries_trimmed_from_outside_do_not_pile_up(client, redis_config):
    writer = CropWriter(client, redis_config)
    client.hset(keys.newest("front"), mapping={f"front/old-{n}": f"{n + 1}-0" for n in range(1000)})
    writer.publish(crop_of("c1"), jpeg_of())
    assert client.hkeys(keys.newest("front")) == [b"front/a-1"]


async def test_consumers_that_are_long_gone_are_forgotten_unless_they_hold_something(client, redis_url, monkeypatch):
    monkeypatch.setattr("pipeline.queue.crop_reader.FORGET_CONSUMER_S", 0.2)
    config = RedisConfig()
    writer = CropWriter(client, config)
    for n in range(2):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
    async with reading(redis_url, config, "idle") as idle, reading(redis_url, config, "working") as working:
        await idle.settle(await taken(idle))
        await taken(working)
    await asyncio.sleep(0.3)

    async with reading(redis_url, config, "new") as reader:
        writer.publish(crop_of("c3", track="front/a-3"), jpeg_of(3))
        await taken(reader)
    names = {consumer["name"] for consumer in client.xinfo_consumers(keys.crops("front"), keys.GROUP)}
    assert names == {b"working", b"new"}


def test_drops_with_a_token_are_counted_once(client):
    counter = DropCounter(client)
    for _ in range(3):
        counter.add({("front", Reason.BUFFER_FULL): 2, ("back", Reason.DEADLINE): 1}, "t")
    assert drops(client) == {"front|buffer_full": 2, "back|deadline_passed": 1}


def test_a_crop_dropped_in_doubt_is_counted_only_when_it_was_not_published(client, redis_config):
    """The buffer dropped two crops whose publish had failed: one of them had reached Redis all the same."""
    writer, counter = CropWriter(client, redis_config), DropCounter(client)
    writer.publish(crop_of("there", track="front/a-1"), jpeg_of(1))
    doubts = [DoubtfulDrop("front", Reason.SUPERSEDED, keys.picture(name)) for name in ("there", "not-there")]
    for _ in range(2):
        counter.add({}, "t", doubts)

    assert drops(client) == {"front|superseded": 1}
    assert (outcome(client, "there"), outcome(client, "not-there")) == (b"queued", b"superseded")
    writer.publish(crop_of("not-there", track="front/a-2"), jpeg_of(2))
    assert client.xlen(keys.crops("front")) == 1, "what is counted as dropped is not published any more"


def test_only_crops_that_were_tried_are_dropped_in_doubt():
    ledger = DropLedger()
    buffer = MessageBuffer(8, ledger, time.time)
    for name in ("tried", "untried", "newer"):
        if name == "newer":
            buffer.give_back(buffer.take())
        buffer.put_crop(WaitingCrop(crop_of(name, track="front/a-1" if name != "untried" else "front/a-2"), jpeg_of()))
    buffer.put_crop(WaitingCrop(crop_of("newest", track="front/a-2"), jpeg_of()))
    counts = ledger.of("front")
    assert counts.take_doubts() == [(Reason.SUPERSEDED, keys.picture("tried"))]
    assert counts.take_new() == {Reason.SUPERSEDED: 1}
    assert counts.totals() == {"superseded": 2}


async def test_r48_with_redis_away_every_list_of_the_publisher_is_bounded(monkeypatch):
    monkeypatch.setattr("ingest.buffer.MAX_TRACKS", 200)
    board, ledger = PreviewBoard(SystemClock()), DropLedger()
    config = RedisConfig(buffer_crops=8)
    publisher = Publisher("redis://127.0.0.1:1", config, list, ledger, board, SystemClock(), ignore)
    publisher.start()
    jpeg, people = jpeg_of(), 1000
    for n in range(people):
        track = f"front/a-{n}"
        publisher.track(track_of(TrackPhase.START, track=track))
        publisher.crop(crop_of(f"c{n}", track=track, kind=CropKind.FINAL), jpeg)
        publisher.track(track_of(TrackPhase.END, track=track, final_crop=True))
    health = publisher.health()
    assert health.crops_waiting <= 8 and health.tracks_waiting <= 201, "one may be on its way"
    assert len(publisher._buffer._finals_lost) <= 201

    def adds_up() -> bool:
        waiting = publisher.health()
        return ledger.of("front").totals()["buffer_full"] == 3 * people - waiting.crops_waiting - waiting.tracks_waiting

    await until(adds_up)
    assert publisher.stop(0.2) is False


# -- dead letters ---------------------------------------------------------------------------------------------------


async def buried(client, redis_url, config, crop_id: str, track: str = "front/a-1") -> str:
    """A crop is put aside; gives the letter's id."""
    CropWriter(client, config).publish(crop_of(crop_id, track=track), jpeg_of(len(crop_id)))
    async with reading(redis_url, config) as reader:
        await reader.bury(await taken(reader), Reason.ENGINE_ERROR)
    return client.xrevrange(keys.DEAD, count=1)[0][0].decode()


async def test_a_dead_letter_replayed_is_described_and_no_drop_any_more(
    client, redis_url, redis_config, store: EventStore, server
):
    letter_id = await buried(client, redis_url, redis_config, "c1")
    assert drops(client) == {"front|failed_too_often": 1}
    async with hub_of(redis_url) as hub:
        [letter] = await hub.dead_letters.newest(10)
        assert (letter.id, letter.message.crop_id, letter.reason) == (letter_id, "c1", "engine_error")
        assert letter.has_picture and abs(letter.buried - time.time()) < 60
        assert await hub.dead_letters.picture(letter_id) == jpeg_of(2)

        assert await hub.dead_letters.replay(letter_id, 60.0) is Replayed.QUEUED
        assert await hub.dead_letters.replay(letter_id, 60.0) is Replayed.UNKNOWN
        assert await hub.dead_letters.newest(10) == []
    assert (drops(client), outcome(client, "c1")) == ({"front|failed_too_often": 0}, b"queued")

    async with describing(redis_url, store, remote(server)):
        await until(lambda: client.xlen(keys.crops("front")) == 0)
    assert outcome(client, "c1") == b"described"
    assert server.behaviour.pictures() == [jpeg_of(2)]
    assert store.get("front.a-1").description == "A person in red ."
    assert client.xlen(keys.DEAD) == 0 and not list(client.scan_iter("ww:dead:*"))


async def test_dead_letters_and_their_pictures_are_bounded(client, redis_url):
    config = RedisConfig(dead_letters=3)
    letters = [await buried(client, redis_url, config, f"crop-{n}", f"front/a-{n}") for n in range(5)]
    async with hub_of(redis_url, config) as hub:
        assert [letter.id for letter in await hub.dead_letters.newest(10)] == letters[:1:-1]
    assert {name.decode() for name in client.scan_iter("ww:dead:*")} == {
        keys.dead_picture(name) for name in letters[2:]
    }
    assert all(client.ttl(keys.dead_picture(name)) > 0 for name in letters[2:])


async def test_a_dead_letter_without_picture_stays_and_can_be_dropped(client, redis_url, redis_config):
    letter_id = await buried(client, redis_url, redis_config, "c1")
    client.delete(keys.dead_picture(letter_id))
    async with hub_of(redis_url) as hub:
        assert await hub.dead_letters.replay(letter_id, 60.0) is Replayed.NO_PICTURE
        assert (await hub.dead_letters.get(letter_id)).has_picture is False
        assert await hub.dead_letters.drop(letter_id) is True
        assert await hub.dead_letters.drop(letter_id) is False
        assert await hub.dead_letters.get("no-id") is None
    assert drops(client) == {"front|failed_too_often": 1}, "it was dropped, and stays so"


async def test_the_stats_tell_cameras_and_consumers_apart(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    now = time.time()
    for n, camera in enumerate(("front", "front", "back")):
        writer.publish(crop_of(f"c{n}", camera=camera, track=f"{camera}/{n}", time=now - 30 + n), jpeg_of(n))
    async with reading(redis_url, consumer="host:1") as reader, hub_of(redis_url) as hub:
        held = await taken(reader)
        stats = await hub.queue_stats()
    assert held.message.camera == "back", "cameras take turns in the order of their names"
    back, front = stats.cameras
    assert (back.camera, back.waiting, back.held, back.oldest_age) == ("back", 0, 1, None)
    assert (front.waiting, front.held) == (2, 0) and 10 <= front.oldest_age < 60
    assert front.bytes == len(jpeg_of(0)) + len(jpeg_of(1))
    [consumer] = stats.consumers
    assert (consumer.name, consumer.held) == ("host:1", 1) and consumer.idle < 60
