"""Crops on their way from ingest to the describers: the writer's side, and the reader's by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from pipeline.config.redis import RedisConfig
from pipeline.messages import CropMessage
from pipeline.queue import keys
from pipeline.queue.crop_reader import CropReader, HeldCrop
from pipeline.queue.scripts import script
from pipeline.reasons import Reason

__all__ = ["CropReader", "CropWriter", "HeldCrop", "publish_arguments"]


class CropWriter:
    """Publishes crops. Safe to call again with the same crop when a reply got lost: it is queued once."""

    def __init__(self, client: redis.Redis, config: RedisConfig) -> None:
        self._config = config
        self._publish = client.register_script(script("publish"))

    def publish(self, message: CropMessage, jpeg: bytes, extras: Sequence[bytes] = ()) -> None:
        """Queues the crop, in place of a waiting one of the same track or of the oldest ones over the bounds.

        ``extras`` are the pictures of ``message.extra_keys``.

        Each one removed is counted in ``ww:drops``, in the same step. Raises ``redis.RedisError``
        (``OutOfMemoryError`` when Redis is full: then nothing was written).
        """
        names, arguments = publish_arguments(message, jpeg, self._config, extras)
        self._publish(keys=names, args=arguments)


def publish_arguments(
    message: CropMessage, jpeg: bytes, config: RedisConfig, extras: Sequence[bytes] = ()
) -> tuple[list[str], list[Any]]:
    """KEYS and ARGV of ``publish.lua``. Raises ValueError when the message doesn't name as many extras."""
    if len(message.extra_keys) != len(extras):
        named = len(message.extra_keys)
        raise ValueError(f"crop {message.crop_id} names {named} further pictures, given are {len(extras)}")
    camera = message.camera
    fields = [item for pair in message.to_fields().items() for item in pair]
    return (
        [
            message.picture_key,
            keys.crops(camera),
            keys.newest(camera),
            keys.CAMERAS,
            keys.DROPS,
            keys.outcome(message.picture_key),
            keys.crop_bytes(camera),
            *message.extra_keys,
        ],
        [
            keys.GROUP,
            jpeg,
            config.picture_ttl_s,
            config.crops_per_camera,
            int(config.crop_mib_per_camera * 2**20),
            camera,
            message.track,
            Reason.SUPERSEDED.value,
            Reason.QUEUE_FULL.value,
            *extras,
            *fields,
        ],
    )
