"""Crops that were put aside after failing too often: looked at, queued once more, or thrown away."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

import redis.asyncio

from pipeline.clock import Clock
from pipeline.config.redis import RedisConfig
from pipeline.messages import CropMessage, MalformedMessage
from pipeline.queue import keys
from pipeline.queue.health import Link
from pipeline.queue.scripts import script
from pipeline.reasons import Reason

LETTER_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")

_Fields = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One crop that was put aside.

    Attributes:
        id: of the letter, not of the crop.
        reason: of the last failure.
        deliveries: how often the crop had been handed out.
        buried: when, in seconds since the epoch.
        has_picture: whether its picture is still kept, without which it can't be queued again.
    """

    id: str
    message: CropMessage
    reason: str
    deliveries: int
    buried: float
    has_picture: bool


class Replayed(StrEnum):
    """What became of the wish to queue a dead letter once more."""

    QUEUED = "queued"
    UNKNOWN = "unknown"
    NO_PICTURE = "no_picture"


class DeadLetters:
    """The stream ``ww:dead`` with its pictures. Each call tries once and raises ``QueueUnavailable``."""

    def __init__(self, client: redis.asyncio.Redis, config: RedisConfig, link: Link, clock: Clock) -> None:
        self._client = client
        self._config = config
        self._link = link
        self._clock = clock
        self._replay = client.register_script(script("replay"))

    async def newest(self, limit: int) -> list[DeadLetter]:
        """The newest ones first, at most ``limit``. One that can't be read is left out."""

        async def read() -> list[DeadLetter]:
            entries = cast("list[tuple[bytes, _Fields]]", await self._client.xrevrange(keys.DEAD, count=limit))
            return [letter for entry in entries if (letter := await self._read(*entry)) is not None]

        return await self._link.once(read)

    async def get(self, letter_id: str) -> DeadLetter | None:
        """One of them; None when there is none with that id."""

        async def read() -> DeadLetter | None:
            if not LETTER_ID.fullmatch(letter_id):
                return None
            found = await self._client.xrange(keys.DEAD, letter_id, letter_id)
            entries = cast("list[tuple[bytes, _Fields]]", found)
            return await self._read(*entries[0]) if entries else None

        return await self._link.once(read)

    async def picture(self, letter_id: str) -> bytes | None:
        """Its JPEG; None when it is no longer kept."""
        return cast("bytes | None", await self._link.once(lambda: self._client.get(keys.dead_picture(letter_id))))

    async def replay(self, letter_id: str, deadline_s: float) -> Replayed:
        """Queues its crop once more, with ``deadline_s`` seconds from now, and takes its drop off the sums."""
        letter = await self.get(letter_id)
        if letter is None:
            return Replayed.UNKNOWN
        now = self._clock.now()
        # As for every crop that is queued again, its age counts from now.
        message = replace(letter.message, time=now, deadline=now + deadline_s)
        camera = message.camera
        names = [
            keys.DEAD,
            keys.dead_picture(letter_id),
            message.picture_key,
            keys.crops(camera),
            keys.CAMERAS,
            keys.DROPS,
            keys.outcome(message.picture_key),
            keys.crop_bytes(camera),
            *message.extra_keys,
        ]
        fields = [item for pair in message.to_fields().items() for item in pair]
        ttl = max(self._config.picture_ttl_s, int(deadline_s) + 1)
        values: list[Any] = [letter_id, keys.drop_field(camera, Reason.POISON), ttl, camera, *fields]
        answer = await self._link.once(lambda: self._replay(keys=names, args=values))
        return {1: Replayed.QUEUED, 0: Replayed.UNKNOWN}.get(answer, Replayed.NO_PICTURE)

    async def drop(self, letter_id: str) -> bool:
        """Throws it away with its picture; False when there is none with that id. Its drop stays counted."""

        letter = await self.get(letter_id)
        if letter is None:
            return False

        async def delete() -> bool:
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.xdel(keys.DEAD, letter_id)
                pipe.delete(keys.dead_picture(letter_id), *letter.message.extra_keys)
                deleted, _ = await pipe.execute()
            return bool(deleted)

        return await self._link.once(delete)

    async def _read(self, entry_id: bytes, fields: _Fields) -> DeadLetter | None:
        letter_id = entry_id.decode()
        try:
            message = CropMessage.from_fields(fields)
            deliveries = int(fields.get(b"deliveries", b"0"))
        except (MalformedMessage, ValueError):
            return None
        buried = int(letter_id.partition("-")[0]) / 1000  # Redis' own clock
        has_picture = bool(await self._client.exists(keys.dead_picture(letter_id)))
        reason = fields.get(b"reason", b"").decode(errors="replace")
        return DeadLetter(letter_id, message, reason, deliveries, buried, has_picture)
