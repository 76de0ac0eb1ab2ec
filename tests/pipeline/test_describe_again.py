"""Descriptions that somebody asks for, through a real queue, a real server and a real store."""

from __future__ import annotations

import hashlib
import time

import pytest

from pipeline.clock import SystemClock
from pipeline.config.engine import DescriberConfig
from pipeline.config.redis import RedisConfig
from pipeline.describe_again import describe_again
from pipeline.messages import CropKind, DescriptionState, TrackPhase
from pipeline.queue import keys
from pipeline.queue.crops import CropWriter
from pipeline.queue.health import QueueUnavailable
from pipeline.queue.hub import CameraHub
from pipeline.reasons import Reason
from pipeline.store import Answer, DescriptionMeta, EventFilter, EventStore
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.test_describer import describing, in_queue, pending, remote
from tests.pipeline.waiting import until

META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9)


def stored(store: EventStore, words: str | None, *, jpeg: bytes | None = None, days: float = 3.0) -> str:
    """An event of some days ago: described, or without words because it came too late."""
    seen = time.time() - days * 86_400
    store.add_crop(crop_of("e", time=seen, deadline=seen + 120, kind=CropKind.FINAL), jpeg or jpeg_of(7))
    store.begin_description("e")
    if words is None:
        store.fail_description("e", Reason.DEADLINE, expired=True)
    else:
        store.finish_description("e", words, META)
    return store.apply_track(track_of(TrackPhase.END, first_seen=seen, last_seen=seen + 2)).id


@pytest.fixture
async def hub(redis_url, redis_config):
    opened = CameraHub(redis_url, redis_config)
    yield opened
    await opened.close()


async def ask(store, hub, event_id, *, force=False, deadline_s=60.0):
    return await describe_again(store, hub, event_id, force=force, deadline_s=deadline_s, clock=SystemClock())


async def test_r50_an_event_without_words_gets_them_on_demand(client, redis_url, store, hub, server):
    event_id = stored(store, None)
    assert store.get(event_id).description_state == DescriptionState.EXPIRED

    asking = await ask(store, hub, event_id)
    assert (asking.answer, asking.event.description_state) == (Answer.ACCEPTED, DescriptionState.QUEUED)
    again = await ask(store, hub, event_id, force=True)
    assert again.answer is Answer.UNDER_WAY and in_queue(client) == 1, "asking twice queues it once"

    async with describing(redis_url, store, remote(server)):
        await until(lambda: store.get(event_id).description_state == DescriptionState.FINAL and in_queue(client) == 0)
    event = store.get(event_id)
    assert (event.description, event.model) == ("A person in red .", "remote")
    assert event.last_seen < time.time() - 86_400, "when the person was seen is what it was"
    assert event.state == "ended" and len(store.list_events().events) == 1
    assert not list(client.scan_iter("ww:crop:*"))
    assert (await ask(store, hub, event_id)).answer is Answer.DESCRIBED and in_queue(client) == 0


async def test_r51_another_description_is_of_the_same_picture_and_takes_the_place_of_the_old(
    client, redis_url, redis_config, store, hub, server
):
    jpeg = jpeg_of(99)
    event_id = stored(store, "The old words.", jpeg=jpeg)
    await ask(store, hub, event_id, force=True)
    assert store.get(event_id).description == "The old words.", "they stay until others come"
    assert store.get(event_id).description_state == DescriptionState.FINAL

    config = DescriberConfig(system_prompt="New instructions.", prompt="A new question?", output="text", max_tokens=21)
    async with describing(redis_url, store, remote(server), config):
        await until(lambda: store.get(event_id).description == "A person in red ." and in_queue(client) == 0)
    assert server.behaviour.pictures() == [jpeg]

    request = store.description(event_id)
    assert request.meta.pictures == (hashlib.sha256(jpeg).hexdigest(),)
    assert (request.meta.system, request.meta.question) == ("New instructions.", "A new question?")
    assert request.meta.options == {"temperature": 0.0, "max_tokens": 21}
    assert (request.meta.model, request.meta.prompt_tokens, request.meta.cached_tokens) == ("remote", 70, 64)
    assert request.meta.prompt_hash == hashlib.sha256(b"New instructions.\0A new question?").hexdigest()
    assert request.meta.total_s >= request.meta.first_token_s > 0
    assert request.meta.image_tokens is None, "this server doesn't say"
    assert store.list_events(EventFilter(text="old")).events == ()
    assert len(store.list_events(EventFilter(text="red")).events) == 1


async def test_words_stay_when_others_fail_to_come(client, redis_url, store, hub, server):
    event_id = stored(store, "The old words.")
    server.behaviour.bad = {jpeg_of(7)}
    await ask(store, hub, event_id, force=True)
    async with describing(redis_url, store, remote(server), redis_config=RedisConfig(max_failures=1)):
        await until(lambda: client.xlen(keys.DEAD) == 1)
    event = store.get(event_id)
    assert (event.description, event.description_state) == ("The old words.", DescriptionState.FINAL)
    # It may be asked for once more at once, though the dead letter's picture is still kept.
    server.behaviour.bad = set()
    assert (await ask(store, hub, event_id, force=True)).answer is Answer.ACCEPTED
    async with describing(redis_url, store, remote(server)):
        await until(lambda: store.get(event_id).description == "A person in red .")


async def test_r50_r55_an_entry_delivered_again_after_it_was_stored_changes_nothing(
    client, redis_url, redis_config, store, hub, server
):
    event_id = stored(store, "The old words.")
    asking = await ask(store, hub, event_id, force=True)
    store.finish_description(asking.message.crop_id, "New words.", META)
    # Stored, but the process died before it acknowledged: the next one takes the entry.
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0 and pending(client) == 0)
    assert store.get(event_id).description == "New words."
    assert server.behaviour.seen == []


async def test_asking_while_redis_is_away_changes_nothing(store):
    event_id = stored(store, None)
    before = store.get(event_id)
    hub = CameraHub("redis://127.0.0.1:1/0", RedisConfig())
    with pytest.raises(QueueUnavailable):
        await ask(store, hub, event_id)
    await hub.close()
    after = store.get(event_id)
    assert (after.description_state, after.reason) == (before.description_state, before.reason)
    assert (after.description_state, after.reason) == (DescriptionState.EXPIRED, Reason.DEADLINE)


async def test_an_asking_that_redis_lost_may_be_repeated_after_its_deadline(client, store, hub):
    event_id = stored(store, None)
    await ask(store, hub, event_id, deadline_s=-1.0)
    client.flushall()
    [expired] = store.expire_waiting(untouched_since=0.0, deadline_before=time.time())
    assert (expired.id, expired.description_state) == (event_id, DescriptionState.EXPIRED)
    assert (await ask(store, hub, event_id)).answer is Answer.ACCEPTED
    assert in_queue(client) == 1


async def test_without_an_event_or_its_picture_there_is_nothing_to_describe(store, hub):
    assert await ask(store, hub, "nobody") is None
    event_id = stored(store, "Words.")
    store.crop_path(event_id).unlink()
    assert (await ask(store, hub, event_id, force=True)).answer is Answer.NO_PICTURE
    bare = store.apply_track(track_of(TrackPhase.END, track="front/bare")).id
    assert (await ask(store, hub, bare)).answer is Answer.NO_PICTURE


async def test_what_its_track_still_waits_for_is_not_asked_twice(store, hub, client):
    store.add_crop(crop_of("e"), jpeg_of())
    assert (await ask(store, hub, "front.a-1", force=True)).answer is Answer.UNDER_WAY
    assert in_queue(client) == 0


async def test_words_that_are_being_written_are_kept_in_memory_only(client, redis_url, redis_config, store, server):
    """Drafts cost the database nothing: a description is three writes, however many words it has."""
    writes: list[int] = []
    write_once = store._database._write_once

    def counted(work):
        writes.append(len(server.behaviour.seen))
        return write_once(work)

    store._database._write_once = counted
    server.behaviour.words = "word " * 200
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of(7))
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)
    assert len(writes) == 3
