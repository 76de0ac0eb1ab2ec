"""Starts, updates and ends of tracks: the writer's side of ``ww:tracks``."""

from __future__ import annotations

from typing import Any, cast

import redis

from pipeline.messages import TrackMessage
from pipeline.queue import keys

MAX_ENTRIES = 100_000
"""Bound while no serve runs, some 25 MB. The keeper deletes what it stored, so that the stream is short otherwise; far
above what the bounded crop streams can refer to, so that no track is trimmed ahead of its crops."""


class TrackWriter:
    """Publishes track messages in their order."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def publish(self, message: TrackMessage) -> None:
        """Raises ``redis.RedisError``. Publishing the same message twice is harmless: storing it is idempotent."""
        fields = cast("dict[Any, Any]", message.to_fields())
        self._client.xadd(keys.TRACKS, fields, maxlen=MAX_ENTRIES, approximate=True)
