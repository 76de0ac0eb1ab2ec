"""Whether Redis answers, and patience while it doesn't."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import redis

from pipeline.clock import Clock, SystemClock
from pipeline.reasons import Reason

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
_LOG_EVERY = 50


class QueueUnavailable(Exception):
    """Redis can't do what was asked now; ``reason`` says why. Nothing of the connection's URL is in the text."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def checkpoint() -> None:
    """Raises ``asyncio.CancelledError`` when this task was cancelled and the cancellation got lost.

    redis-py and aiomqtt send through ``asyncio.wait_for``, which before Python 3.12 drops a cancellation that comes at
    the very moment it is done (cpython#86296). A loop that uses them and doesn't look would then run for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """Whether the last use of Redis worked, why not (REDIS_DOWN, REDIS_MEMORY), and since when that is so."""

    ok: bool
    reason: Reason
    since: float


class Link:
    """One user's connection to Redis as a state: up, or down with a reason. Logs changes, not every attempt."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._failures = 0
        self._health = QueueHealth(True, Reason.NONE, self._clock.now())

    @property
    def health(self) -> QueueHealth:
        return self._health

    def worked(self) -> None:
        """Notes that Redis answered."""
        self._failures = 0
        if not self._health.ok:
            log.info("%s: Redis is back", self._name)
            self._health = QueueHealth(True, Reason.NONE, self._clock.now())

    def failed(self, error: redis.RedisError) -> Reason:
        """Notes that Redis failed, and says for which reason."""
        memory = isinstance(error, redis.exceptions.OutOfMemoryError)
        reason = Reason.REDIS_MEMORY if memory else Reason.REDIS_DOWN
        if self._health.ok or self._health.reason != reason:
            self._health = QueueHealth(False, reason, self._clock.now())
        if self._failures % _LOG_EVERY == 0:
            log.warning("%s: %s: %s (failure %d in a row)", self._name, reason, error, self._failures + 1)
        self._failures += 1
        return reason

    async def pause(self) -> None:
        """Waits before the next attempt, longer after each failure, with jitter so that users don't come in step."""
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 16))
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))

    async def until_done(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeats an operation that may be repeated until Redis has done it."""
        while True:
            try:
                result = await operation()
            except redis.RedisError as error:
                self.failed(error)
                checkpoint()
                await self.pause()
            else:
                self.worked()
                checkpoint()
                return result

    async def once(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Tries once. Raises :class:`QueueUnavailable`."""
        try:
            result = await operation()
        except redis.RedisError as error:
            raise QueueUnavailable(self.failed(error)) from error
        self.worked()
        return result
