"""Redis as the API sees it: cameras, previews, commands, event changes, and how full the queue is."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import redis

from pipeline.clock import Clock, SystemClock
from pipeline.config.redis import RedisConfig
from pipeline.messages import CameraStatus, CommandKind, CommandMessage, CropMessage, EventChange, MalformedMessage
from pipeline.queue import keys
from pipeline.queue.address import RedisAddress
from pipeline.queue.commands import MAX_ENTRIES as MAX_COMMANDS
from pipeline.queue.connect import async_blocking_client, async_client, block_ms
from pipeline.queue.crops import publish_arguments
from pipeline.queue.dead_letters import DeadLetters
from pipeline.queue.health import Link, QueueHealth, checkpoint
from pipeline.queue.scripts import script
from pipeline.queue.stats import QueueStats, read_stats

log = logging.getLogger(__name__)

WATCH_EVERY_S = 2.0
"""However many people watch a camera, ingest hears of it at most so often."""
_BLOCK_MS = 1000
_BATCH = 100
_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


class CameraHub:
    """Async access to Redis for serve. Each call tries once and raises :class:`QueueUnavailable` while Redis is away;
    :meth:`changes` waits for its return."""

    def __init__(self, address: RedisAddress | str, config: RedisConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._client = async_client(address)
        self._blocking = async_blocking_client(address)
        self._stats = self._client.register_script(script("stats"))
        self._publish_crop = self._client.register_script(script("publish"))
        self._link = Link("hub", self._clock)
        self._watched: dict[str, float] = {}
        self.dead_letters = DeadLetters(self._client, config, self._link, self._clock)

    @property
    def health(self) -> QueueHealth:
        return self._link.health

    async def statuses(self) -> list[CameraStatus]:
        """Every camera that an ingest reported within the status TTL, by id."""
        return await self._link.once(self._statuses)

    async def preview(self, camera: str) -> bytes | None:
        """The newest preview JPEG; None when there is no live one."""
        return cast("bytes | None", await self._link.once(lambda: self._client.get(keys.preview(camera))))

    async def picture(self, crop_id: str) -> bytes | None:
        """The JPEG of a crop that waits to be described; None when it is no longer kept."""
        return cast("bytes | None", await self._link.once(lambda: self._client.get(keys.picture(crop_id))))

    async def pictures_at(self, picture_keys: Sequence[str]) -> list[bytes | None]:
        """The JPEGs under these keys of a crop's message; None for those that are no longer kept."""
        return cast("list[bytes | None]", await self._link.once(lambda: self._client.mget(picture_keys)))

    async def watch(self, camera: str) -> None:
        """Says that somebody watches the camera. Call it for as long as that is so; calls in between are free."""
        now = self._clock.monotonic()
        if now - self._watched.get(camera, -WATCH_EVERY_S) < WATCH_EVERY_S:
            return
        self._watched = {name: at for name, at in self._watched.items() if now - at < WATCH_EVERY_S}
        self._watched[camera] = now
        await self.send(CommandMessage(CommandKind.WATCH, camera, self._clock.now()))

    async def send(self, command: CommandMessage) -> None:
        """Sends a command to every ingest."""
        fields = cast("dict[Any, Any]", command.to_fields())
        await self._link.once(lambda: self._client.xadd(keys.COMMANDS, fields, maxlen=MAX_COMMANDS, approximate=True))

    async def share_camera_changes(self, text: str) -> None:
        """Hands the API's changes of all cameras to every ingest, in place of those of before. Holds passwords."""
        await self._link.once(lambda: self._share_camera_changes(text))

    async def shared_camera_changes(self) -> bytes | None:
        """What :meth:`share_camera_changes` handed over last; None after a flush."""
        return cast("bytes | None", await self._link.once(lambda: self._client.get(keys.CAMERA_CHANGES)))

    async def publish_crop(self, message: CropMessage, jpeg: bytes) -> None:
        """Queues a stored crop once more, as ingest queues new ones."""
        names, arguments = publish_arguments(message, jpeg, self._config)
        await self._link.once(lambda: self._publish_crop(keys=names, args=arguments))

    async def publish_change(self, change: EventChange) -> None:
        """Tells everyone who watches events, in every serve process."""
        fields = cast("dict[Any, Any]", change.to_fields())
        await self._link.once(
            lambda: self._client.xadd(keys.EVENTS, fields, maxlen=self._config.events_maxlen, approximate=True)
        )

    async def changes(self, last_id: str | None = None) -> AsyncGenerator[tuple[str, EventChange], None]:
        """Event changes with their ids, without end: those after ``last_id`` that are still kept, then new ones.

        None, or an id that is none (it comes from a header), means new ones only. Redis may go, restart or be flushed
        meanwhile. Reads from Redis at the consumer's own speed: a slow one costs no memory here.
        """
        wanted = last_id.encode() if last_id is not None and _ENTRY_ID.fullmatch(last_id) else None
        position: bytes | None = None
        while True:
            checkpoint()
            try:
                if position is None:
                    newest = await self._newest_change()
                    # An id from before a flush can be ahead of a stream that began anew.
                    position = newest if wanted is None else min(wanted, newest, key=_order)
                    self._link.worked()
                block = block_ms(self._blocking, _BLOCK_MS)
                reply = await self._blocking.xread({keys.EVENTS: position}, count=_BATCH, block=block)
            except redis.RedisError as error:
                self._link.failed(error)
                wanted, position = position or wanted, None
                await self._link.pause()
                continue
            for entry_id, fields in cast("list[Any]", reply)[0][1] if reply else ():
                position = entry_id
                try:
                    change = EventChange.from_fields(fields)
                except MalformedMessage as error:
                    log.warning("events: entry %s skipped: %s", entry_id.decode(), error)
                else:
                    yield entry_id.decode(), change

    async def queue_stats(self) -> QueueStats:
        """How many crops wait and are held, how old the oldest is, and how many are dead letters."""
        return await self._link.once(self._queue_stats)

    async def drops(self) -> dict[str, dict[str, int]]:
        """Camera -> reason -> how many were dropped, since the hash began."""
        counted: dict[str, dict[str, int]] = {}
        fields = cast("dict[bytes, bytes]", await self._link.once(lambda: self._client.hgetall(keys.DROPS)))
        for name, count in fields.items():
            camera, _, reason = name.decode().rpartition("|")
            if int(count):  # 0: all were taken back
                counted.setdefault(camera, {})[reason] = int(count)
        return counted

    async def ping(self) -> bool:
        """Whether Redis answers."""
        try:
            await self._client.ping()
        except redis.RedisError as error:
            self._link.failed(error)
            return False
        self._link.worked()
        return True

    async def eviction_policy(self) -> str:
        """``maxmemory-policy`` of the server. Under ``allkeys-*`` it may evict a whole stream with its group (R63).

        From INFO, which managed servers answer where CONFIG is refused.
        """
        info = await self._link.once(lambda: self._client.info("memory"))
        return str(info["maxmemory_policy"])

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()
        await self._blocking.aclose()

    async def _share_camera_changes(self, text: str) -> None:
        command = CommandMessage(CommandKind.CAMERAS, "", self._clock.now())
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.set(keys.CAMERA_CHANGES, text)
            pipe.xadd(keys.COMMANDS, cast("dict[Any, Any]", command.to_fields()), maxlen=MAX_COMMANDS, approximate=True)
            await pipe.execute()

    async def _camera_ids(self) -> list[str]:
        return sorted(camera.decode() for camera in cast("set[bytes]", await self._client.smembers(keys.CAMERAS)))

    async def _statuses(self) -> list[CameraStatus]:
        cameras = await self._camera_ids()
        async with self._client.pipeline(transaction=False) as pipe:
            for camera in cameras:
                pipe.hgetall(keys.camera(camera))
            hashes = await pipe.execute()
        statuses = []
        for camera, fields in zip(cameras, hashes, strict=True):
            if not fields:
                continue
            try:
                statuses.append(CameraStatus.from_fields(fields))
            except MalformedMessage as error:
                log.warning("status of camera %s can't be read: %s", camera, error)
        return statuses

    async def _queue_stats(self) -> QueueStats:
        cameras = await self._camera_ids()
        names = [key for camera in cameras for key in (keys.crops(camera), keys.crop_bytes(camera))]
        rows = await self._stats(keys=names, args=[keys.GROUP]) if cameras else []
        return read_stats(cameras, rows, dead=await self._client.xlen(keys.DEAD), now=self._clock.now())

    async def _newest_change(self) -> bytes:
        entries = cast("list[Any]", await self._client.xrevrange(keys.EVENTS, count=1))
        return entries[0][0] if entries else b"0-0"


def _order(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.partition(b"-")
    return int(ms), int(seq)
