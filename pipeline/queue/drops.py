"""Every drop, counted by camera and reason in one hash that outlives the processes."""

from __future__ import annotations

import redis

from pipeline.queue import keys
from pipeline.reasons import Reason


def count_drops(client: redis.Redis, camera: str, reason: Reason, n: int = 1) -> None:
    """Adds ``n`` to the camera's drops for ``reason``. Raises ``redis.RedisError``."""
    client.hincrby(keys.DROPS, keys.drop_field(camera, reason), n)
