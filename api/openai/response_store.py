"""Responses that can be looked at, continued and deleted later: in memory, bounded in number, bytes and age."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.errors import ApiError
from pipeline.clock import Clock, SystemClock

if TYPE_CHECKING:
    from openai.types.responses import Response

    from api.openai.response_log import EventLog
    from api.openai.responses_request import InputItem


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a conversation, under the id by which clients see it."""

    id: str
    message: InputItem


@dataclass(slots=True, eq=False)
class StoredResponse:
    """A response and what it came from.

    Attributes:
        owner: whose it is (:attr:`api.auth.Caller.id`); for others it doesn't exist.
        response: as it stands.
        context: all that it was made from, oldest first, without instructions.
        size: bytes of the requests that the context came with, and of the answer.
        stored: when, on the monotonic clock, in seconds.
        task: makes a background response; None for others.
        log: what the stream of a background response has said; None for those without one.
    """

    owner: str
    response: Response
    context: tuple[Item, ...]
    size: int
    stored: float = 0.0
    task: asyncio.Task[None] | None = None
    log: EventLog | None = None

    @property
    def running(self) -> bool:
        """Whether it is still being made."""
        return self.task is not None and not self.task.done()


class ResponseStore:
    """Stored responses of all callers. Lives in the event loop's thread; nothing survives a restart.

    Beyond a bound the oldest of whoever has most go. Those still being made stay: server.max_open_requests bounds them.

    Args:
        max_count, max_bytes, max_age_s: server.stored_responses, _bytes and _age_s.
        clock: tests decide what time it is.
    """

    def __init__(self, max_count: int, max_bytes: int, max_age_s: float, clock: Clock | None = None) -> None:
        self._max_count, self.max_bytes, self._max_age_s = max_count, max_bytes, max_age_s
        self._clock = clock or SystemClock()
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self._size

    @property
    def keeps(self) -> bool:
        """Whether anything is stored at all."""
        return self._max_count > 0 and self.max_bytes > 0

    def put(self, entry: StoredResponse) -> None:
        """Stores or replaces a response, and forgets what is beyond the bounds."""
        self._remove(entry.response.id)
        entry.stored = self._clock.monotonic()
        self._entries[entry.response.id] = entry
        self._size += entry.size
        self._forget()

    def get(self, response_id: str, owner: str) -> StoredResponse:
        """The response. Raises 404 when it was never stored, is forgotten, or is another caller's."""
        self._forget()
        entry = self._entries.get(response_id)
        if entry is None or entry.owner != owner:
            raise ApiError(
                404,
                f"Response with id '{response_id[:100]}' not found; it was not stored, or is forgotten by now.",
                param="response_id",
                code="not_found",
            )
        return entry

    def delete(self, response_id: str, owner: str) -> None:
        """Forgets a response; one that is still being made is given up. Raises 404 as :meth:`get` does."""
        entry = self.get(response_id, owner)
        self._remove(response_id)
        if entry.task is not None:
            entry.task.cancel()

    def _forget(self) -> None:
        too_old = self._clock.monotonic() - self._max_age_s
        for response_id, entry in list(self._entries.items()):
            if entry.stored > too_old:
                break  # the rest is younger
            if not entry.running:
                self._remove(response_id)
        while len(self._entries) > self._max_count and self._forget_one(lambda entry: 1):
            pass
        while self._size > self.max_bytes and self._forget_one(lambda entry: entry.size):
            pass

    def _forget_one(self, weight: Callable[[StoredResponse], int]) -> bool:
        """Removes the oldest finished response of whoever has most, so that nobody crowds out the others."""
        held: Counter[str] = Counter()
        oldest: dict[str, str] = {}
        for response_id, entry in self._entries.items():
            if not entry.running:
                held[entry.owner] += weight(entry)
                oldest.setdefault(entry.owner, response_id)
        if not oldest:
            return False
        self._remove(oldest[held.most_common(1)[0][0]])
        return True

    def _remove(self, response_id: str) -> None:
        entry = self._entries.pop(response_id, None)
        if entry is not None:
            self._size -= entry.size
