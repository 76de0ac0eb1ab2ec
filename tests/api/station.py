"""Everything around the operator API with real parts: Valkey, the hub, the event store, and what ingest would write."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from api.services import Services
from pipeline.camera_registry import CameraRegistry
from pipeline.config import CameraConfig, RedisConfig, StoreConfig, WatchwordConfig
from pipeline.describer_metrics import DescriberMetrics
from pipeline.image_ladder import ImageLadder
from pipeline.messages import (
    CameraState,
    CameraStatus,
    ChangeKind,
    CropKind,
    CropMessage,
    EventChange,
    TrackMessage,
    TrackPhase,
)
from pipeline.queue import keys
from pipeline.queue.connect import async_blocking_client, async_client, sync_client
from pipeline.queue.crops import CropReader, CropWriter
from pipeline.queue.drops import DropCounter
from pipeline.queue.hub import CameraHub
from pipeline.queue.preview import PreviewWriter
from pipeline.queue.status import StatusWriter
from pipeline.reasons import Reason
from pipeline.store import DescriptionMeta, EventRecord, EventStore, View
from tests.api.pictures import encoded

PASSWORD = "S3cret"

CAMERAS = (
    CameraConfig(id="front", name="Front door", url="rtsp://10.0.0.2/stream", username="u", password=PASSWORD),
    CameraConfig(id="yard", name="Yard", url="rtsp://10.0.0.3/stream"),
    CameraConfig(id="attic", name="Attic", url="rtsp://10.0.0.4/stream", enabled=False),
)
BOX = (10.0, 20.0, 110.0, 220.0)


class Station:
    """``services`` for the app, and the writer's side of Redis and the store for the test."""

    def __init__(self, redis_url: str, data_dir: Path, engine: Any = None, **server: Any) -> None:
        self.redis_url = redis_url
        self.config = WatchwordConfig(
            cameras=CAMERAS,
            redis=RedisConfig(url=redis_url),
            store=StoreConfig(data_dir=data_dir),
            server=server,
        )
        self.store = EventStore(self.config.store)
        self.ladder = ImageLadder(self.config.describer)
        hub = CameraHub(redis_url, self.config.redis)
        self.registry = CameraRegistry(CAMERAS, self.store.cameras, hub)
        self.describing = DescriberMetrics()
        self.services = Services(
            self.config,
            engine,
            self.store,
            hub,
            "tiny",
            self.ladder,
            cameras=self.registry,
            describing=self.describing,
        )
        self.redis: redis.Redis = sync_client(redis_url)
        self._statuses = StatusWriter(self.redis, self.config.redis)
        self._previews = PreviewWriter(self.redis)

    def close(self) -> None:
        self.store.close()
        self.redis.close()

    def status(self, camera: str, state: CameraState = CameraState.ONLINE, **fields: Any) -> None:
        """What ingest writes every second or so."""
        now = time.time()
        given: dict[str, Any] = dict(
            name=camera, reason=Reason.NONE, since=now - 60, updated=now, source="rtsp://10.0.0.2/stream", fps=5.0
        )
        self._statuses.write(CameraStatus(camera=camera, state=state, **{**given, **fields}))

    def preview(self, camera: str, jpeg: bytes) -> None:
        self._previews.write(camera, jpeg)

    def drop(self, camera: str, reason: Reason, n: int = 1) -> None:
        DropCounter(self.redis).add({(camera, reason): n}, uuid.uuid4().hex)

    def person(
        self,
        camera: str,
        number: int,
        *,
        seen: float | None = None,
        picture: bytes | None = None,
        others: Sequence[bytes] = (),
    ) -> EventRecord:
        """Somebody comes into view, with a picture and maybe further ones."""
        record = self.track(camera, number, TrackPhase.START, seen=seen)
        views = [View(other) for other in others]
        return self.store.add_crop(self.crop(camera, number, record.first_seen), picture or encoded(), views)

    def crop(self, camera: str, number: int, at: float | None = None) -> CropMessage:
        """What ingest would publish of that person."""
        at = time.time() if at is None else at
        return CropMessage(
            crop_id=f"{camera}-{number}-1",
            camera=camera,
            track=f"{camera}/t-{number}",
            kind=CropKind.EARLY,
            time=at,
            box=BOX,
            score=0.9,
            quality=0.8,
            frame_id=number,
            picture_key=keys.picture(f"{camera}-{number}-1"),
            label="person",
            deadline=at + 120,
            width=96,
            height=128,
            frame_width=1280,
            frame_height=720,
        )

    def bury(self, crop: CropMessage, jpeg: bytes, reason: Reason) -> str:
        """A describer takes the crop and puts it aside; gives the dead letter's id."""

        async def fail() -> None:
            client, blocking = async_client(self.redis_url), async_blocking_client(self.redis_url)
            reader = CropReader(client, blocking, self.config.redis, "d0")
            held = await asyncio.wait_for(reader.take(), 10)
            assert held is not None
            await reader.bury(held, reason)
            await client.aclose()
            await blocking.aclose()

        CropWriter(self.redis, self.config.redis).publish(crop, jpeg)
        asyncio.run(fail())
        return self.redis.xrevrange(keys.DEAD, count=1)[0][0].decode()

    def track(
        self,
        camera: str,
        number: int,
        phase: TrackPhase,
        *,
        seen: float | None = None,
        stay: float = 0.0,
        crop_id: str | None = None,
    ) -> EventRecord:
        first = time.time() if seen is None else seen
        message = TrackMessage(
            track=f"{camera}/t-{number}",
            camera=camera,
            phase=phase,
            label="person",
            time=first + stay,
            first_seen=first,
            last_seen=first + stay,
            box=BOX,
            score=0.9,
            reason=Reason.TRACK_LOST if phase is TrackPhase.END else Reason.NONE,
            crop_id=crop_id,
        )
        return self.store.apply_track(message)

    def describe(self, record: EventRecord, words: str, attributes: Mapping[str, Any] | None = None) -> EventRecord:
        assert record.crop is not None
        meta = DescriptionMeta("tiny", "0" * 64, "stop", 100, 0, 10, 0.1, 0.5, image_tokens=64, attributes=attributes)
        return self.store.finish_description(record.crop.crop_id, words, meta)

    def publish(self, kind: ChangeKind, record: EventRecord, **fields: Any) -> str:
        """A change for everyone who watches; gives its id in the stream."""
        change = EventChange(kind, record.id, time.time(), {**record.to_api(), **fields})
        return self.redis.xadd(keys.EVENTS, change.to_fields()).decode()
