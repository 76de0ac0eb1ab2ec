"""Starts, updates and ends of tracks: the reader's side of ``ww:tracks``."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, cast

import redis
import redis.asyncio

from pipeline.clock import Clock
from pipeline.config.redis import RedisConfig
from pipeline.messages import MalformedMessage, TrackMessage
from pipeline.queue import keys
from pipeline.queue.connect import block_ms
from pipeline.queue.drops import NOBODY
from pipeline.queue.health import Link, QueueHealth, checkpoint
from pipeline.queue.scripts import script
from pipeline.reasons import Reason

log = logging.getLogger(__name__)

OTHERS_SILENT_S = 15.0
"""A consumer that reads does so every second or so."""
ANSWER_S = 0.5
_BATCH = 100
_BLOCK_MS = 1000

_Entries = list[tuple[bytes, dict[bytes, bytes] | None]]


@dataclass(frozen=True, slots=True)
class TrackEntry:
    """A message, to be acknowledged by its entry id once it is stored."""

    entry_id: bytes
    message: TrackMessage


class TrackReader:
    """Reads as a member of the group ``serve``: what this consumer left unfinished, what a dead one did, then new ones.

    Args:
        consumer: stable over restarts, used by no other living process.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        blocking_client: redis.asyncio.Redis,
        config: RedisConfig,
        consumer: str,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._blocking = blocking_client
        self._idle_ms = int(config.claim_idle_s * 1000)
        self._claim_every_s = config.claim_idle_s / 3
        self._consumer = consumer
        self._link = Link("tracks", clock)
        self._end_track = client.register_script(script("end_track"))
        self._history: bytes | None = b"0"
        self._next_claim = 0.0
        self._last_outage: float | None = None

    @property
    def health(self) -> QueueHealth:
        return self._link.health

    @property
    def seconds_since_outage(self) -> float:
        """Since Redis was last found away; infinite when it never was."""
        return float("inf") if self._last_outage is None else time.monotonic() - self._last_outage

    async def read(self) -> list[TrackEntry]:
        """The next messages in their order; empty when none came for a second. Waits while Redis is away."""
        while True:
            checkpoint()
            try:
                entries = await self._read_once()
                readable = await self._readable(entries)
            except redis.RedisError as error:
                if isinstance(error, redis.ResponseError) and str(error).startswith("NOGROUP"):
                    # The stream was flushed or Redis came back empty (R60).
                    await self._link.until_done(self._make_group)
                    continue
                self._link.failed(error)
                self._last_outage = time.monotonic()
                self._history = b"0"  # a reply may have got lost: what it delivered is this consumer's by now
                await self._link.pause()
            else:
                self._link.worked()
                if readable or not entries:
                    return readable

    def look_back(self) -> None:
        """What comes next is what this consumer was given and has not ended."""
        self._history = b"0"

    async def read_now(self) -> list[TrackEntry]:
        """The next messages that are there; empty at once when there are none, or while Redis is away."""
        try:
            while True:
                if self._history is not None:
                    entries = await self._group_read(self._history, None)
                    self._history = entries[-1][0] if entries else None
                    if not entries:
                        continue
                else:
                    entries = await self._group_read(b">", None)
                readable = await self._readable(entries)
                if readable or not entries:
                    return readable
        except redis.RedisError as error:
            self._link.failed(error)
            return []

    async def is_alone(self) -> bool:
        """Whether no other process has read tracks lately. True while Redis is away: then nobody reads any."""
        try:
            async with asyncio.timeout(ANSWER_S):
                consumers = await self._client.xinfo_consumers(keys.TRACKS, keys.TRACKS_GROUP)
        except (redis.RedisError, TimeoutError):
            return True
        mine = self._consumer.encode()
        return all(other["name"] == mine or other["idle"] > OTHERS_SILENT_S * 1000 for other in consumers)

    async def done(self, entry: TrackEntry) -> None:
        """Acknowledges and deletes what is stored. Waits for Redis if need be; doing it twice is harmless."""
        await self._link.until_done(lambda: self._end(entry.entry_id))

    async def give_up(self, entry: TrackEntry, reason: Reason) -> None:
        """Ends a message that can't be stored, and counts it."""
        await self._link.until_done(lambda: self._end(entry.entry_id, entry.message.camera, reason))

    async def _read_once(self) -> _Entries:
        if self._history is not None:
            entries = await self._group_read(self._history, None)
            self._history = entries[-1][0] if entries else None
            if entries:
                return entries
        if time.monotonic() >= self._next_claim:
            entries = await self._claim()
            if entries:
                return entries
            self._next_claim = time.monotonic() + self._claim_every_s
        return await self._group_read(b">", block_ms(self._blocking, _BLOCK_MS))

    async def _group_read(self, after: bytes, block: int | None) -> _Entries:
        streams: dict[Any, Any] = {keys.TRACKS: after}
        reply = await self._blocking.xreadgroup(keys.TRACKS_GROUP, self._consumer, streams, count=_BATCH, block=block)
        return cast("list[tuple[bytes, _Entries]]", reply)[0][1] if reply else []

    async def _claim(self) -> _Entries:
        reply = cast(
            "tuple[bytes, _Entries, list[bytes]]",
            await self._client.xautoclaim(
                keys.TRACKS, keys.TRACKS_GROUP, self._consumer, self._idle_ms, b"0-0", count=_BATCH
            ),
        )
        if reply[2]:
            log.warning("tracks: %d entries were trimmed before they were stored", len(reply[2]))
            await self._client.hincrby(keys.DROPS, keys.drop_field(NOBODY, Reason.TRIMMED), len(reply[2]))
        return reply[1]

    async def _readable(self, entries: _Entries) -> list[TrackEntry]:
        readable = []
        for entry_id, fields in entries:
            try:
                if not fields:
                    log.warning("tracks: entry %s was trimmed before it was stored", entry_id.decode())
                    await self._end(entry_id, NOBODY, Reason.TRIMMED)
                    continue
                readable.append(TrackEntry(entry_id, TrackMessage.from_fields(fields)))
            except MalformedMessage as error:
                log.warning("tracks: entry %s skipped: %s", entry_id.decode(), error)
                await self._end(entry_id, NOBODY, Reason.MALFORMED)
        return readable

    async def _end(self, entry_id: bytes, camera: str = "", drop: Reason | None = None) -> None:
        field = keys.drop_field(camera, drop) if drop is not None else ""
        await self._end_track(keys=[keys.TRACKS, keys.DROPS], args=[keys.TRACKS_GROUP, entry_id, field])

    async def _make_group(self) -> None:
        try:
            await self._client.xgroup_create(keys.TRACKS, keys.TRACKS_GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
