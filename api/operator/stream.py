"""``GET /api/stream``: event changes as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from api.errors import ApiError
from api.operator.parts import hub_of
from api.services import Provided
from api.streaming import EventStream, sse
from pipeline.clock import iso
from pipeline.messages import EventChange

if TYPE_CHECKING:
    from pipeline.queue.hub import CameraHub

KEEP_ALIVE_S = 15.0
"""Proxies and browsers close a connection that is silent for long; a comment keeps it."""
RETRY_MS = 2000
MAX_STREAMS = 200
"""Each open stream holds a connection to Redis."""

router = APIRouter(prefix="/api/stream", tags=["operator"])


@router.get(
    "",
    summary="Event changes as server-sent events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_changes(
    request: Request,
    services: Provided,
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
    after: Annotated[str | None, Query(max_length=64, description="As Last-Event-ID, for clients without it.")] = None,
) -> EventStream:
    """Changes after ``Last-Event-ID``, as far as they are still kept, then new ones as they happen."""
    hub, state = hub_of(services), request.app.state
    if state.open_streams >= MAX_STREAMS:
        message = f"{state.open_streams} event streams are open already, the bound."
        raise ApiError(429, message, code="too_many_streams", headers={"Retry-After": "10"})
    state.open_streams += 1

    async def closed() -> None:
        state.open_streams -= 1

    return EventStream(_lines(hub, last_event_id or after, state.closing), closed)


async def _lines(hub: CameraHub, last_id: str | None, closing: asyncio.Event) -> AsyncGenerator[bytes, None]:
    changes = hub.changes(last_id)
    end = asyncio.create_task(closing.wait())
    # Begun before the first line goes out: what happens after a client sees the stream open must not be missed.
    following: asyncio.Task[tuple[str, EventChange]] | None = asyncio.create_task(_next(changes))
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        while True:
            following = following or asyncio.create_task(_next(changes))
            await asyncio.wait({following, end}, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                return
            if not following.done():
                yield b": keep-alive\n\n"
                continue
            entry_id, change = following.result()
            following = None
            yield _line(entry_id, change)
    finally:
        end.cancel()
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def _next(changes: AsyncIterator[tuple[str, EventChange]]) -> tuple[str, EventChange]:
    return await anext(changes)


def _line(entry_id: str, change: EventChange) -> bytes:
    data = {
        "kind": change.kind.value,
        "event_id": change.event_id,
        "time": iso(change.time),
        "event": dict(change.event),
    }
    return sse(json.dumps(data, separators=(",", ":")), event=change.kind.value, entry_id=entry_id)
