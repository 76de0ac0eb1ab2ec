"""How much one key may ask for, and how much the server takes on at once: 429 with Retry-After beyond it."""

from __future__ import annotations

import asyncio
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth import ApiKeys, Caller
from api.errors import ApiError, from_engine
from pipeline.clock import Clock, SystemClock
from vlm_engine.errors import EngineError

MINUTE_S = 60.0
BUSY_RETRY_S = 1
"""When a request in work will end nobody knows; soon is a fair guess."""

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
"""POST requests to these end in the engine's queue."""

_CORES = os.cpu_count() or 1
ARRIVAL_S, ARRIVALS = 0.016 / _CORES, 4
"""Requests for the engine's queue are looked at so far apart, beyond so many at once: the fewer cores, the more of the
engine's time each takes."""
LONGEST_WAIT_S = 4.0
"""Who would wait longer to be looked at is refused at once: a flood must not become a queue for everybody."""
PREPARE_S, PREPARES = 0.05 / _CORES, 2
"""And those that it has room for are parsed and tokenised so far apart."""

COUNTED = GENERATING | {"/tokenize", "/detokenize"}
"""POST requests to these make the model or the tokenizer work."""

RoomCheck = Callable[[int], None]
"""Told how many requests are being prepared for the engine's queue; raises EngineError when one more has no room."""


class Pace:
    """Spreads a burst over time. Each request costs the event loop a part of a millisecond in which the engine's thread
    waits for the interpreter; hundreds in a row would be a gap in every stream, one every few milliseconds is none.

    The generic cell rate algorithm (ITU-T I.371).

    Args:
        seconds: between two requests.
        burst: so many may come at once.
        longest: who would wait longer is refused.
    """

    def __init__(self, seconds: float, burst: int, longest: float = math.inf) -> None:
        self._seconds = seconds
        self._burst = burst
        self._longest = longest
        self._turn = -math.inf

    def delay(self, now: float) -> float:
        """Seconds that a request that comes ``now`` is to wait; 0.0 for most. Each call counts as a request.

        Raises 429, which doesn't count, when that is too long.
        """
        turn = max(self._turn + self._seconds, now - self._burst * self._seconds)
        if turn - now > self._longest:
            message = f"Requests come faster than one every {1000 * self._seconds:g} ms, which this server looks at."
            raise _too_many(message, "server_busy", BUSY_RETRY_S)
        self._turn = turn
        return max(0.0, turn - now)

    async def turn(self) -> None:
        """Waits so long. Raises what :meth:`delay` raises."""
        wait = self.delay(asyncio.get_running_loop().time())
        if wait > 0:
            await asyncio.sleep(wait)


class Slot:
    """A request's place among those in work, and among those being prepared. Left once, whoever does it first."""

    def __init__(self, limits: Limits, key: str, counted: float | None = None) -> None:
        self._limits = limits
        self._key = key
        self._counted = counted
        self._left = self._queued = False
        self.kept = False

    def keep(self) -> None:
        """The work outlives its HTTP request: whoever does it leaves the slot."""
        self.kept = True

    async def queue_up(self) -> None:
        """The request has arrived whole: it counts as waiting for the engine from now on. Returns when it is its turn
        to be prepared. Raises 429 without room."""
        if not self._queued and not self._left:
            self._limits.require_room()
            self._limits.num_preparing += 1
            self._queued = True
            await self._limits.preparing.turn()

    def submitted(self) -> None:
        """The engine counts the request itself from now on. Idempotent."""
        if self._queued:
            self._limits.num_preparing -= 1
            self._queued = False

    def refuse(self) -> None:
        """Leaves, and the request doesn't count among those of the last minute. Nothing when it was left before."""
        if self._counted is not None and not self._left:
            self._limits.uncount(self._key, self._counted)
        self.leave()

    def leave(self) -> None:
        """Makes room for another. Idempotent."""
        self.submitted()
        if not self._left:
            self._limits.leave(self._key)
            self._left = True


class Limits:
    """Counts requests in work and requests of the last minute. Lives in the event loop's thread.

    Args:
        max_open: server.max_open_requests.
        clock: tests decide what time it is.
        room: of the engine's queue. Requests that are parsed and prepared count as if they were in it: else a burst
            would be prepared whole, on the streams' time, before the first of it fills the queue.

    Attributes:
        num_open: requests in work.
        num_preparing: of these, how many are on their way into the engine's queue.
        preparing: spreads the work of that.
    """

    def __init__(self, max_open: int, clock: Clock | None = None, room: RoomCheck = lambda preparing: None) -> None:
        self._max_open = max_open
        self._room = room
        self._clock = clock or SystemClock()
        self._open_of: defaultdict[str, int] = defaultdict(int)
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)
        self.num_open = 0
        self.num_preparing = 0
        self.preparing = Pace(PREPARE_S, PREPARES)

    def enter(self, caller: Caller) -> Slot:
        """A slot for one request of ``caller``. Raises 429 when there is none; refused requests don't count."""
        if self.num_open >= self._max_open:
            raise _too_many(
                f"{self.num_open} requests are in work, the limit (server.max_open_requests).",
                "server_busy",
                BUSY_RETRY_S,
            )
        most = caller.max_concurrent_requests
        if most is not None and self._open_of[caller.id] >= most:
            raise _too_many(
                f"This API key has {most} requests in work, its limit (max_concurrent_requests).",
                "concurrency_limit_exceeded",
                BUSY_RETRY_S,
            )
        per_minute = caller.requests_per_minute
        counted = self._count(caller.id, per_minute) if per_minute is not None else None
        self.num_open += 1
        self._open_of[caller.id] += 1
        return Slot(self, caller.id, counted)

    def require_room(self) -> None:
        """Raises 429 when one more request has no room in the engine's queue."""
        try:
            self._room(self.num_preparing)
        except EngineError as error:
            raise from_engine(error) from None

    def leave(self, key: str) -> None:
        """Counts out what :meth:`enter` counted in."""
        self.num_open -= 1
        self._open_of[key] -= 1

    def uncount(self, key: str, counted: float) -> None:
        """Takes back what :meth:`enter` counted for the last minute, at that time."""
        if counted in self._recent[key]:
            self._recent[key].remove(counted)

    def _count(self, key: str, most: int) -> float:
        recent, now = self._recent[key], self._clock.monotonic()
        while recent and recent[0] <= now - MINUTE_S:
            recent.popleft()
        if len(recent) >= most:
            raise _too_many(
                f"This API key has made {most} requests within a minute, its limit (requests_per_minute).",
                "rate_limit_exceeded",
                math.ceil(recent[0] + MINUTE_S - now),
            )
        recent.append(now)
        return now


def _too_many(message: str, code: str, retry_after: int) -> ApiError:
    return ApiError(429, message, code=code, headers={"Retry-After": str(max(1, retry_after))})


class LimitRequests:
    """Gives every counted request a slot for as long as it is answered, streams included.

    Requests without a valid key pass: the route refuses them before they cost anything.
    """

    def __init__(self, app: ASGIApp, limits: Limits, keys: ApiKeys) -> None:
        self._app = app
        self._limits = limits
        self._keys = keys
        self._arrivals = Pace(ARRIVAL_S, ARRIVALS, LONGEST_WAIT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in COUNTED
        caller = self._keys.bearer(Headers(scope=scope)) if counted else None
        if caller is None:
            await self._app(scope, receive, send)
            return
        try:
            # First, so that whoever is beyond their own limits takes nobody's turn.
            slot = self._limits.enter(caller)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        try:
            if scope["path"] in GENERATING:
                await self._arrivals.turn()
                # Before anything is read: refusing must cost little, there may be hundreds to refuse.
                self._limits.require_room()
        except ApiError as error:
            slot.refuse()
            await error.response()(scope, receive, send)
            return
        except BaseException:
            slot.leave()
            raise
        scope.setdefault("state", {})["slot"] = slot
        try:
            await self._app(scope, receive, send)
        finally:
            if not slot.kept:
                slot.leave()
