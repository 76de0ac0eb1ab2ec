"""Crops on their way from ingest to the describers: the reader's side.

Order of taking: what this consumer had before (it died, or a reply got lost), what it put back to try again, what
another consumer left behind, then new crops, one camera after the other. A crop is taken when somebody is free to
describe it and not before, so that waiting crops stay in Redis, where they can be superseded, bounded and shared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import redis
import redis.asyncio

from pipeline.clock import Clock, SystemClock
from pipeline.config.redis import RedisConfig
from pipeline.messages import CropMessage, MalformedMessage
from pipeline.queue import keys
from pipeline.queue.connect import block_ms
from pipeline.queue.health import Link, QueueHealth, checkpoint
from pipeline.queue.scripts import script
from pipeline.reasons import Reason

log = logging.getLogger(__name__)

PRESSURE_SHARE = 0.25
"""When a camera's oldest waiting crop has waited for more than this share of its time, its newest goes first."""
LOOK_FOR_CAMERAS_S = 1.0
BLOCK_MS = 1000
FIRST_RETRY_S = 0.5
MAX_RETRIES_HELD = 16
"""With so many crops put back for another attempt, no new ones are taken: this process's memory stays bounded."""
FORGET_CONSUMER_S = 24 * 3600.0
"""A consumer that holds nothing is forgotten after so long without a sign of life."""
DEAD_TTL_S = 14 * 24 * 3600
"""So long the pictures of dead letters are kept."""


@dataclass(frozen=True, slots=True)
class HeldCrop:
    """A crop that this process works on, until it settles it, gives it up or puts it back.

    Attributes:
        entry_id: in the camera's stream.
        jpeg: None when the picture had expired.
        deliveries: how often it was handed out, this time included.
        refusal: why it can't be described any more (DEADLINE, PICTURE_EXPIRED, POISON), NONE when it can.
    """

    entry_id: bytes
    message: CropMessage
    jpeg: bytes | None
    deliveries: int
    refusal: Reason = Reason.NONE

    @property
    def arrived(self) -> float:
        """When it came into the queue, in seconds since the epoch by Redis's clock."""
        return int(self.entry_id.partition(b"-")[0]) / 1000.0


class CropReader:
    """Takes crops as a member of the group ``describers``.

    Args:
        client: from :func:`pipeline.queue.connect.async_client`.
        blocking_client: from :func:`pipeline.queue.connect.async_blocking_client`.
        consumer: this process's name in the group. Stable over restarts (its unfinished crops come back at once) and
            used by no other living process.
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
        self._config = config
        self._consumer = consumer
        self._clock = clock or SystemClock()
        self._link = Link("crops", self._clock)
        names = ("take", "resume", "claim", "settle", "renew", "fail")
        self._scripts = {name: client.register_script(script(name)) for name in names}
        self._turn = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._cameras: list[str] = []
        self._next_look = 0.0
        self._next_claim = 0.0
        self._resumed: set[str] = set()
        self._held: dict[tuple[str, bytes], CropMessage] = {}
        self._retries: list[tuple[float, HeldCrop]] = []

    @property
    def health(self) -> QueueHealth:
        return self._link.health

    @property
    def held(self) -> int:
        """How many crops this process holds, those that wait for another attempt included."""
        return len(self._held)

    def stop(self) -> None:
        """No more crops are taken: those who wait for one, or will ask for one, get None within about a second."""
        self._stopping.set()

    async def take(self) -> HeldCrop | None:
        """The next crop; waits for one as long as it takes, also for Redis to come back. None after :meth:`stop`.

        A crop that can't be described any more is handed out too, with its ``refusal``, so that its event learns of it.
        """
        async with self._turn:
            while not self._stopping.is_set():
                try:
                    checkpoint()
                    taken = await self._take_once()
                except redis.RedisError as error:
                    self._link.failed(error)
                    self._resumed.clear()
                    await self._link.pause()
                except asyncio.CancelledError:
                    self._resumed.clear()
                    raise
                else:
                    self._link.worked()
                    if taken is not None:
                        return taken
        return None

    async def settle(self, held: HeldCrop) -> None:
        """Ends the crop after its outcome is stored. Waits for Redis if need be; doing it twice is harmless."""
        await self._end(held, drop=None)

    async def give_up(self, held: HeldCrop, reason: Reason) -> None:
        """Ends a crop that won't be described, after that is stored, and counts it."""
        await self._end(held, drop=reason)

    async def bury(self, held: HeldCrop, reason: Reason) -> None:
        """Ends a crop that failed too often: counted as POISON, kept in ``ww:dead`` with its last failure's reason."""
        log.warning("crop %s of camera %s is put aside: %s", held.message.crop_id, held.message.camera, reason)
        letter = held.message.to_fields() | {"reason": reason.value, "deliveries": str(held.deliveries)}
        await self._end(held, drop=Reason.POISON, letter=letter)

    async def fail(self, held: HeldCrop) -> bool:
        """Records a failure. True when it was the last allowed one: bury it. Else the crop comes again in a while.

        One that another describer has claimed meanwhile is left to that one.
        """
        camera = held.message.camera
        failures = await self._link.until_done(
            lambda: self._scripts["fail"](
                keys=[keys.crops(camera), keys.failures(camera)], args=[keys.GROUP, self._consumer, held.entry_id]
            )
        )
        if failures < 0:
            self._held.pop((camera, held.entry_id), None)
            return False
        if failures >= self._config.max_failures:
            return True
        self._retries.append((self._clock.monotonic() + FIRST_RETRY_S * 2 ** (failures - 1), held))
        return False

    async def keep_claims(self) -> None:
        """Runs for as long as crops are taken: renews this process's claims every third of the idle limit."""
        while True:
            await asyncio.sleep(self._config.claim_idle_s / 3)
            await self._link.until_done(self._renew)

    async def _renew(self) -> None:
        held = list(self._held)
        if not held:
            return
        lost = await self._scripts["renew"](
            keys=[keys.crops(camera) for camera, _ in held],
            args=[keys.GROUP, self._consumer, *(entry_id for _, entry_id in held)],
        )
        for n in lost:
            camera, entry_id = held[n - 1]
            if (camera, entry_id) in self._held:
                # Described twice at worst: storing is idempotent.
                log.warning("crop entry %s of camera %s went to another describer", entry_id.decode(), camera)

    async def _take_once(self) -> HeldCrop | None:
        await self._look_for_cameras()
        taken = await self._resume() or self._due_retry() or await self._claim()
        if taken is not None:
            return self._judged(taken)
        if len(self._retries) >= MAX_RETRIES_HELD or not self._cameras:
            await asyncio.sleep(FIRST_RETRY_S)
            return None
        found = await self._scripts["take"](
            keys=[keys.crops(camera) for camera in self._cameras],
            args=[keys.GROUP, self._consumer, self._clock.now(), PRESSURE_SHARE],
        )
        if found[0] == 0:
            await self._wait(found[1])
            return None
        camera = self._cameras[found[0] - 1]
        # Round robin: the one just served is last in line.
        self._cameras = self._cameras[found[0] :] + self._cameras[: found[0]]
        held = await self._hold(camera, found[1], found[2], 1)
        return self._judged(held) if held else None

    async def _look_for_cameras(self) -> None:
        if self._clock.monotonic() < self._next_look:
            return
        known = {camera.decode() for camera in cast("set[bytes]", await self._client.smembers(keys.CAMERAS))}
        kept = [camera for camera in self._cameras if camera in known]
        self._cameras = kept + sorted(known.difference(kept))
        self._resumed &= known
        self._next_look = self._clock.monotonic() + LOOK_FOR_CAMERAS_S

    async def _resume(self) -> HeldCrop | None:
        """One crop that this consumer was given before and doesn't know of."""
        cameras = [camera for camera in self._cameras if camera not in self._resumed]
        if not cameras:
            return None
        known: list[Any] = []
        for camera, entry_id in self._held:
            if camera in cameras:
                known += [cameras.index(camera) + 1, entry_id]
        found = await self._scripts["resume"](
            keys=[keys.DROPS, *_streams_and_failures(cameras)],
            args=[keys.GROUP, self._consumer, *_trimmed_fields(cameras), *known],
        )
        if found[0] == 0:
            self._resumed.update(cameras)
            return None
        return await self._hold(cameras[found[0] - 1], found[1], found[2], found[3])

    def _due_retry(self) -> HeldCrop | None:
        now = self._clock.monotonic()
        for n, (due, held) in enumerate(self._retries):
            if due <= now:
                del self._retries[n]
                return held
        return None

    async def _claim(self) -> HeldCrop | None:
        """One crop whose holder is silent for longer than the idle limit."""
        now = self._clock.monotonic()
        if now < self._next_claim or not self._cameras:
            return None
        limits = (int(self._config.claim_idle_s * 1000), int(FORGET_CONSUMER_S * 1000))
        found = await self._scripts["claim"](
            keys=[keys.DROPS, *_streams_and_failures(self._cameras)],
            args=[keys.GROUP, self._consumer, *limits, *_trimmed_fields(self._cameras)],
        )
        if found[0] == 0:
            self._next_claim = now + self._config.claim_idle_s / 3
            return None
        return await self._hold(self._cameras[found[0] - 1], found[1], found[2], found[3])

    async def _wait(self, newest: Sequence[bytes]) -> None:
        """Returns when a stream has an entry younger than the newest seen, a retry is due, or a second has passed."""
        streams: dict[Any, Any] = {
            keys.crops(camera): entry_id for camera, entry_id in zip(self._cameras, newest, strict=True)
        }
        now = self._clock.monotonic()
        wait = min([BLOCK_MS, *(int((due - now) * 1000) for due, _ in self._retries)])
        await self._blocking.xread(streams, count=1, block=block_ms(self._blocking, wait))

    async def _hold(self, camera: str, entry_id: bytes, flat: list[bytes], deliveries: int) -> HeldCrop | None:
        """The entry as a crop; None when it can't be read (it is ended and counted then) or is held already."""
        if (camera, entry_id) in self._held:
            return None
        try:
            message = CropMessage.from_fields(dict(zip(flat[::2], flat[1::2], strict=True)))
            if message.camera != camera:
                raise MalformedMessage("field 'camera' is not the stream's camera")
        except MalformedMessage as error:
            log.warning("crops: entry %s of camera %s can't be read: %s", entry_id.decode(), camera, error)
            await self._settle(camera, entry_id, drop=Reason.MALFORMED)
            return None
        self._held[camera, entry_id] = message
        try:
            jpeg = cast("bytes | None", await self._client.get(message.picture_key))
        except BaseException:
            # The caller won't get this crop now: it is found again as one that this consumer was given before.
            del self._held[camera, entry_id]
            self._resumed.discard(camera)
            raise
        return HeldCrop(entry_id, message, jpeg, deliveries)

    def _judged(self, held: HeldCrop) -> HeldCrop:
        """The crop with the reason, if any, why describing it makes no sense now."""
        if held.deliveries > self._config.max_deliveries:
            return replace(held, refusal=Reason.POISON)
        if self._clock.now() >= held.message.deadline:
            return replace(held, refusal=Reason.DEADLINE)
        if held.jpeg is None:
            return replace(held, refusal=Reason.PICTURE_EXPIRED)
        return held

    async def _end(self, held: HeldCrop, *, drop: Reason | None, letter: Mapping[str, str] | None = None) -> None:
        camera = held.message.camera
        await self._link.until_done(
            lambda: self._settle(camera, held.entry_id, message=held.message, drop=drop, letter=letter)
        )
        self._held.pop((camera, held.entry_id), None)

    async def _settle(
        self,
        camera: str,
        entry_id: bytes,
        *,
        message: CropMessage | None = None,
        drop: Reason | None,
        letter: Mapping[str, str] | None = None,
    ) -> None:
        picture = message.picture_key if message else keys.picture("")
        await self._scripts["settle"](
            keys=[
                keys.crops(camera),
                keys.newest(camera),
                keys.failures(camera),
                picture,
                keys.DROPS,
                keys.DEAD,
                keys.outcome(picture),
                keys.crop_bytes(camera),
                *(message.extra_keys if message else ()),
            ],
            args=[
                keys.GROUP,
                self._consumer,
                entry_id,
                camera,
                message.track if message else "",
                drop.value if drop else "",
                self._config.picture_ttl_s,
                self._config.dead_letters,
                DEAD_TTL_S,
                *(item for pair in (letter or {}).items() for item in pair),
            ],
        )


def _streams_and_failures(cameras: Sequence[str]) -> list[str]:
    return [key for camera in cameras for key in (keys.crops(camera), keys.failures(camera))]


def _trimmed_fields(cameras: Sequence[str]) -> list[str]:
    return [keys.drop_field(camera, Reason.TRIMMED) for camera in cameras]
