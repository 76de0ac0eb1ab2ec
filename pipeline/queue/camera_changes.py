"""The cameras' changes as ingest finds them: the reader's side of ``ww:camera-changes``."""

from __future__ import annotations

from typing import cast

import redis

from pipeline.config.overlay import ChangeSet
from pipeline.queue import keys


class ChangesReader:
    """Reads what serve shares."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._last: bytes | None = None

    def read(self) -> ChangeSet | None:
        """The changes when they differ from those of the last call; None when they don't, or when none are shared.

        None there means that serve has not spoken yet, or that Redis was flushed: it takes nothing back.
        Raises ``redis.RedisError``; :class:`pipeline.config.overlay.MalformedChanges`, once for the same text.
        """
        text = cast("bytes | None", self._client.get(keys.CAMERA_CHANGES))
        if text is None or text == self._last:
            return None
        self._last = text
        return ChangeSet.from_json(text)
