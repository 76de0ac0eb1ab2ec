"""What a background response's stream has said so far, so that it can be listened to from any place, more than once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable


class EventLog:
    """Encoded events in their order; an event's place is its ``sequence_number``. Lives in the event loop's thread.

    Attributes:
        size: bytes of all events.
    """

    def __init__(self) -> None:
        self.size = 0
        self._events: list[bytes] = []
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, events: Iterable[bytes]) -> None:
        """More events, for whoever listens now or later."""
        for event in events:
            self._events.append(event)
            self.size += len(event)
        self._wake()

    def end(self) -> None:
        """No more events come."""
        self._ended = True
        self._wake()

    async def after(self, number: int = -1) -> AsyncGenerator[bytes, None]:
        """The events after that number, those to come included, until the end."""
        place = number + 1
        while True:
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self._ended:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        # Everybody who waits gets this one; whoever comes later waits for the next.
        self._changed.set()
        self._changed = asyncio.Event()
