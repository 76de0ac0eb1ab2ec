"""The state of each camera as ingest tells it: the writer's side of ``ww:camera:{id}``."""

from __future__ import annotations

from typing import Any, cast

import redis

from pipeline.config.redis import RedisConfig
from pipeline.messages import CameraStatus
from pipeline.queue import keys


class StatusWriter:
    """Writes camera states. They vanish after ``status_ttl_s``, so write each at least twice as often."""

    def __init__(self, client: redis.Redis, config: RedisConfig) -> None:
        self._client = client
        self._ttl_s = config.status_ttl_s

    def write(self, status: CameraStatus) -> None:
        """Replaces the camera's state as a whole. Raises ``redis.RedisError``."""
        key = keys.camera(status.camera)
        fields = cast("dict[Any, Any]", status.to_fields())
        with self._client.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            pipe.hset(key, mapping=fields)
            pipe.expire(key, self._ttl_s)
            pipe.sadd(keys.CAMERAS, status.camera)
            pipe.execute()

    def remove(self, camera: str) -> None:
        """Forgets the state of a camera that was removed; its waiting crops stay. Raises ``redis.RedisError``."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.delete(keys.camera(camera), keys.preview(camera))
            pipe.xlen(keys.crops(camera))
            waiting = pipe.execute()[1]
        if not waiting:
            self._client.srem(keys.CAMERAS, camera)
