"""Keeps events in step with what ingest says of its tracks, and ends what nobody ends any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import redis.asyncio
from sqlalchemy.exc import SQLAlchemyError

from pipeline.clock import Clock, SystemClock
from pipeline.config.redis import RedisConfig
from pipeline.messages import ChangeKind, DescriptionState, EventChange, TrackPhase
from pipeline.queue.health import QueueHealth, QueueUnavailable
from pipeline.queue.hub import CameraHub
from pipeline.queue.track_reader import TrackEntry, TrackReader
from pipeline.reasons import Reason
from pipeline.store import EventRecord, EventStore
from pipeline.store.patience import StoreLink

log = logging.getLogger(__name__)

SILENCE_S = 60.0
"""An active event without news for so long is interrupted; ingest sends an update of each track far more often."""
GRACE_S = 90.0
"""So long after its deadline a crop may still be in the making."""
SWEEP_EVERY_S = 5.0
UPDATES_EVERY_S = 1.0
"""Watchers hear of an event's updates at most so often; starts and ends go out at once."""
_KINDS = {
    TrackPhase.START: ChangeKind.CREATED,
    TrackPhase.UPDATE: ChangeKind.UPDATED,
    TrackPhase.END: ChangeKind.ENDED,
}


class TrackKeeper:
    """Reads ``ww:tracks``, stores, acknowledges, tells.

    Args:
        consumer: this process's name in the group; stable over restarts, used by no other living process.
        crop_deadline_s: how long ingest lets a crop wait at most (``crops.deadline_s``).
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        blocking_client: redis.asyncio.Redis,
        store: EventStore,
        hub: CameraHub,
        config: RedisConfig,
        consumer: str,
        *,
        crop_deadline_s: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._reader = TrackReader(client, blocking_client, config, consumer, self._clock)
        self._store = store
        self._hub = hub
        self._crop_deadline_s = crop_deadline_s
        self._storing = StoreLink("tracks")
        self._next_sweep = 0.0
        self._told: dict[str, tuple[float, bool]] = {}

    @property
    def health(self) -> QueueHealth:
        """Of its side of Redis."""
        return self._reader.health

    @property
    def store_ok(self) -> bool:
        """Whether the store took the last message."""
        return self._storing.ok

    async def run(self) -> None:
        """Until cancelled. Nothing that Redis or the database does ends it."""
        while True:
            entries = await self._reader.read()
            for entry in entries:
                await self._keep(entry)
            if not entries and time.monotonic() >= self._next_sweep:
                await self._sweep()
                self._next_sweep = time.monotonic() + SWEEP_EVERY_S

    async def catch_up(self) -> None:
        """Stores what was published so far, once :meth:`run` has ended. Returns at once while Redis is away."""
        self._reader.look_back()
        while entries := await self._reader.read_now():
            for entry in entries:
                await self._keep(entry)

    async def interrupt_open(self) -> None:
        """Interrupts what is still open, as nobody will watch over it from now on; the last thing.

        While another process keeps tracks, nothing is interrupted. News that comes later makes an event active again.
        """
        if await self._reader.is_alone():
            await self._interrupt(self._clock.now())

    async def _keep(self, entry: TrackEntry) -> None:
        message = entry.message
        try:
            record = await self._storing.until_done(lambda: self._store.apply_track(message))
        except (SQLAlchemyError, ValueError):
            # This message's own fault; the ones behind it must not wait for it for ever.
            log.exception("track %s of camera %s can't be stored", message.track, message.camera)
            await self._reader.give_up(entry, Reason.MALFORMED)
            return
        await self._reader.done(entry)
        if message.phase == TrackPhase.UPDATE and not self._may_tell(record):
            return
        await self._tell(_KINDS[message.phase], record)
        if message.phase == TrackPhase.END:
            self._told.pop(record.id, None)
            await self._tell_of_words([record])

    async def _sweep(self) -> None:
        """Only called when all news is read: what has none then really has none."""
        now = self._clock.now()
        if self._reader.seconds_since_outage > SILENCE_S:
            await self._interrupt(now - SILENCE_S)
        waited = now - self._crop_deadline_s - GRACE_S
        await self._tell_of_words(
            await self._storing.until_done(lambda: self._store.expire_waiting(waited, now - GRACE_S))
        )

    async def _interrupt(self, untouched_since: float) -> None:
        interrupted = await self._storing.until_done(lambda: self._store.interrupt_open_events(untouched_since))
        for record in interrupted:
            log.info("event %s is interrupted: there is no more news of it", record.id)
            await self._tell(ChangeKind.ENDED, record)
        await self._tell_of_words(interrupted)

    def _may_tell(self, record: EventRecord) -> bool:
        """Not too often, but a first picture at once."""
        now = time.monotonic()
        at, had_picture = self._told.get(record.id, (-UPDATES_EVERY_S, False))
        has_picture = record.announced_crop_id is not None
        if now - at < UPDATES_EVERY_S and has_picture == had_picture:
            return False
        if len(self._told) > 1000:
            self._told = {name: told for name, told in self._told.items() if now - told[0] < UPDATES_EVERY_S}
        self._told[record.id] = (now, has_picture)
        return True

    async def _tell_of_words(self, records: Iterable[EventRecord]) -> None:
        for record in records:
            if record.description_state == DescriptionState.FINAL:
                await self._tell(ChangeKind.DESCRIBED, record)
            elif record.description_state in (DescriptionState.EXPIRED, DescriptionState.FAILED):
                await self._tell(ChangeKind.FAILED, record)

    async def _tell(self, kind: ChangeKind, record: EventRecord) -> None:
        try:
            await self._hub.publish_change(EventChange(kind, record.id, self._clock.now(), record.to_api()))
        except QueueUnavailable:
            # The event is stored; who watches sees it with its next change or when the page is loaded.
            log.debug("the change of event %s was not announced", record.id)
