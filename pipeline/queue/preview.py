"""Preview pictures while somebody watches: the writer's side of ``ww:preview:{id}``."""

from __future__ import annotations

import redis

from pipeline.queue import keys

TTL_S = 5
"""A preview older than this is not live; the key goes, and the page says so."""


class PreviewWriter:
    """Writes the newest preview of a camera."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write(self, camera: str, jpeg: bytes) -> None:
        """Replaces the camera's preview for the next ``TTL_S`` seconds. Raises ``redis.RedisError``."""
        self._client.set(keys.preview(camera), jpeg, ex=TTL_S)
