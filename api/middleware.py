"""Around every request: its id, the body cap, the security headers, and the net under unexpected errors."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import suppress
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError

_log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

DRAIN_S = 2.0

SECURITY_HEADERS = {
    # No inline script or style, nothing from elsewhere, no framing. blob: holds the camera pictures the page fetched.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class RequestFrame:
    """Gives each request an id (the client's own when it is well-formed) and each answer the headers.

    The one broad catch of the HTTP side: a request that fails unexpectedly gets 500 in the usual shape, the log gets
    the traceback, and the others go on.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.monotonic()
        status = 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, framed)
        except Exception:
            _log.exception("%s %s failed, request id %s", scope["method"], scope["path"], request_id)
            if status:
                raise  # The answer has begun; the server cuts the connection, which the client sees as an error.
            message = f"Internal error. The server's log has it under the request id {request_id}."
            await ApiError(500, message, code="internal_error").response()(scope, receive, framed)
        finally:
            took_ms = (time.monotonic() - started) * 1000
            _log.debug("%s %s -> %d in %.0f ms, %s", scope["method"], scope["path"], status, took_ms, request_id)


class BodyLimit:
    """Bounds what bodies take: each in bytes (413, announced or not) and in seconds (408), all together in bytes (429).

    Args:
        limit: bytes of one body (server.max_body_bytes).
        total: bytes of all bodies of requests that are being answered (server.max_open_body_bytes).
        seconds: in which a body must arrive (server.body_timeout_s).
    """

    def __init__(self, app: ASGIApp, limit: int, total: int, seconds: float) -> None:
        self._app = app
        self._limit = limit
        self._total = total
        self._seconds = seconds
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._limit:
            await self._drain(receive)
            await self._refusal().response()(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._seconds
        seen = 0
        whole = False

        async def counted() -> Message:
            nonlocal seen, whole
            try:
                async with asyncio.timeout_at(None if whole else deadline):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            size = len(message.get("body", b""))
            seen += size
            self._held += size
            whole = not message.get("more_body", False)
            if seen > self._limit or self._held > self._total:
                too_large = seen > self._limit
                if not whole:
                    await self._drain(receive)
                raise self._refusal() if too_large else self._too_many()
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= seen

    def _too_slow(self) -> ApiError:
        message = f"The request body did not arrive within {self._seconds:g} s (server.body_timeout_s)."
        return ApiError(408, message, code="request_body_timeout", headers={"Connection": "close"})

    def _too_many(self) -> ApiError:
        message = f"Requests of {self._total} bytes are in work, the limit (server.max_open_body_bytes)."
        return ApiError(429, message, code="server_busy", headers={"Retry-After": "1"})

    def _refusal(self) -> ApiError:
        message = f"The request body is larger than the limit of {self._limit} bytes (server.max_body_bytes)."
        return ApiError(413, message, code="request_too_large")

    async def _drain(self, receive: Receive) -> None:
        """Reads on for a while: closing with unread data resets the connection, and the client never sees the 413."""
        left = 2 * self._limit
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):  # also the end of a connection
                        return
