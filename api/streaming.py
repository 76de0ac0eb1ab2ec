"""Server-sent events out, and knowing when the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

KEEP_ALIVE = b": keep-alive\n\n"

CLIENT_GONE = 499
"""nginx's status for a client that left; seen in our log only."""


def sse(data: str, *, event: str | None = None, entry_id: str | None = None) -> bytes:
    """One event. ``data`` must be a single line, which JSON is."""
    head = (f"id: {entry_id}\n" if entry_id else "") + (f"event: {event}\n" if event else "")
    return f"{head}data: {data}\n\n".encode()


class EventStream(Response):
    """Sends what ``pieces`` yields, and closes the generator at once when the client leaves.

    Starlette's own StreamingResponse cancels inside an anyio scope, which cancels the generator's clean-up too. Here
    the generator sees one cancellation and may await in its ``finally`` (abort a request, close a reader).
    ``on_close`` runs in any case, also when the client left before the generator began.

    A stream that is silent for ``keep_alive_s`` seconds gets a comment line, which clients ignore and proxies see: a
    request may wait in the queue for longer than they would keep a silent connection open.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        on_close: Callable[[], Awaitable[None]] | None = None,
        *,
        keep_alive_s: float | None = None,
    ) -> None:
        # Proxies must not buffer (nginx), nor caches keep or re-encode it.
        super().__init__(headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces
        self._on_close = on_close
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send_all(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            await _cancel(gone)
            await _cancel(sender)
            if self._on_close is not None:
                await self._on_close()

    async def _send_all(self, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while (piece := await self._next(send)) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._pieces.aclose()

    async def _next(self, send: Send) -> bytes | None:
        """The next piece, None at the end; comments go out while it takes long."""
        following = asyncio.ensure_future(anext(self._pieces, None))
        try:
            while not (await asyncio.wait({following}, timeout=self._keep_alive_s))[0]:
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
            return following.result()
        finally:
            await _cancel(following)


class ClientGone(Exception):
    """The client closed the connection before its answer was ready; nobody is left to read one."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Awaits ``work``, cancelling it as soon as the client closes the connection (then raises ClientGone).

    The request's body must have been read before.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancel(gone)
        await _cancel(task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancels and waits until the task's clean-up has run; its own outcome was looked at before."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
