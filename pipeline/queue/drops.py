"""Every drop, counted by camera and reason in one hash that outlives the processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from pipeline.queue import keys
from pipeline.queue.scripts import script
from pipeline.reasons import Reason

NOBODY = "*"
"""In place of a camera's id for what can't be told to be any camera's. No id of a camera looks like that."""
TOKEN_TTL_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class DoubtfulDrop:
    """A crop that was dropped after an attempt to publish it whose reply got lost."""

    camera: str
    reason: Reason
    picture_key: str


class DropCounter:
    """Adds to the sums in ``ww:drops``."""

    def __init__(self, client: redis.Redis) -> None:
        self._count = client.register_script(script("count"))

    def add(self, counts: Mapping[tuple[str, Reason], int], token: str, doubts: Sequence[DoubtfulDrop] = ()) -> None:
        """Adds the numbers by camera and reason, and those of the crops in doubt that were not published, in one step.

        Safe to call again with the same token when a reply got lost: they are counted once. Raises
        ``redis.RedisError``.
        """
        pairs = [item for (camera, reason), n in counts.items() for item in (keys.drop_field(camera, reason), n)]
        cases = [item for doubt in doubts for item in (doubt.camera, doubt.reason.value)]
        outcomes = [keys.outcome(doubt.picture_key) for doubt in doubts]
        names = [keys.DROPS, keys.counted(token), *outcomes]
        self._count(keys=names, args=[TOKEN_TTL_S, TOKEN_TTL_S, *cases, *pairs])
