"""How much one key may ask for, and how much the server takes on at once: 429 with Retry-After beyond it."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth import ApiKeys, Caller
from api.errors import ApiError
from pipeline.clock import Clock, SystemClock

MINUTE_S = 60.0
BUSY_RETRY_S = 1
"""When a request in work will end nobody knows; soon is a fair guess."""

COUNTED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"})
"""POST requests to these make the model or the tokenizer work."""


class Slot:
    """A request's place among those in work. Left once, whoever does it first."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave
        self.kept = False

    def keep(self) -> None:
        """The work outlives its HTTP request: whoever does it leaves the slot."""
        self.kept = True

    def leave(self) -> None:
        """Makes room for another. Idempotent."""
        if self._leave is not None:
            self._leave()
            self._leave = None


class Limits:
    """Counts requests in work and requests of the last minute. Lives in the event loop's thread.

    Args:
        max_open: server.max_open_requests.
        clock: tests decide what time it is.
    """

    def __init__(self, max_open: int, clock: Clock | None = None) -> None:
        self._max_open = max_open
        self._clock = clock or SystemClock()
        self._open = 0
        self._open_of: defaultdict[str, int] = defaultdict(int)
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)

    @property
    def num_open(self) -> int:
        """Requests in work."""
        return self._open

    def enter(self, caller: Caller) -> Slot:
        """A slot for one request of ``caller``. Raises 429 when there is none; refused requests don't count."""
        if self._open >= self._max_open:
            raise _too_many(
                f"{self._open} requests are in work, the limit (server.max_open_requests).", "server_busy", BUSY_RETRY_S
            )
        most = caller.max_concurrent_requests
        if most is not None and self._open_of[caller.id] >= most:
            raise _too_many(
                f"This API key has {most} requests in work, its limit (max_concurrent_requests).",
                "concurrency_limit_exceeded",
                BUSY_RETRY_S,
            )
        if caller.requests_per_minute is not None:
            self._count(caller.id, caller.requests_per_minute)
        self._open += 1
        self._open_of[caller.id] += 1
        return Slot(lambda: self._leave(caller.id))

    def _count(self, key: str, most: int) -> None:
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

    def _leave(self, key: str) -> None:
        self._open -= 1
        self._open_of[key] -= 1


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in COUNTED
        caller = self._keys.bearer(Headers(scope=scope)) if counted else None
        if caller is None:
            await self._app(scope, receive, send)
            return
        try:
            slot = self._limits.enter(caller)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        scope.setdefault("state", {})["slot"] = slot
        try:
            await self._app(scope, receive, send)
        finally:
            if not slot.kept:
                slot.leave()
