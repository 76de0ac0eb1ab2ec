"""``GET /api/events`` and one event with its picture."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import FileResponse

from api.errors import ApiError, invalid
from api.operator.parts import EventPath, store_of
from api.services import Provided, Services
from pipeline.messages import EventState
from pipeline.store import BadCursor, EventStore

DEFAULT_LIMIT = 50
MAX_LIMIT = 200

router = APIRouter(prefix="/api/events", tags=["operator"])


class EventList(BaseModel):
    events: list[dict[str, Any]] = Field(description="Newest first.")
    next: str | None = Field(description="Give it as `before` for older ones; null at the end.")


@router.get("", summary="Events, newest first")
async def list_events(
    services: Provided,
    camera: Annotated[str | None, Query(pattern=r"^[a-z0-9_-]{1,64}$")] = None,
    state: EventState | None = None,
    before: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
) -> EventList:
    store = store_of(services)
    try:
        page = await asyncio.to_thread(store.list_events, camera=camera, state=state, before=before, limit=limit)
    except BadCursor as error:
        raise invalid(str(error), param="before", code="invalid_cursor") from None
    return EventList(events=[event.to_api() for event in page.events], next=page.next)


@router.get("/{event}", summary="One event")
async def show_event(event: EventPath, services: Provided) -> dict[str, Any]:
    record = await asyncio.to_thread(store_of(services).get, event)
    if record is None:
        raise _not_found(event)
    return record.to_api()


@router.get("/{event}/crop.jpg", summary="The event's picture", response_class=Response)
async def show_crop(event: EventPath, request: Request, services: Provided) -> Response:
    """The best picture so far. It may be replaced by a better one, so caches must ask (ETag)."""
    store = store_of(services)
    path = await asyncio.to_thread(_crop_file, store, event, services.config.store.data_dir)
    if path is None:
        return await _waiting_crop(store, event, services)
    response = FileResponse(path, media_type="image/jpeg", stat_result=await asyncio.to_thread(path.stat))
    response.headers["Cache-Control"] = "private, no-cache"
    if request.headers.get("if-none-match") != response.headers["etag"]:
        return response
    return Response(status_code=304, headers={"ETag": response.headers["etag"], "Cache-Control": "private, no-cache"})


async def _waiting_crop(store: EventStore, event: str, services: Services) -> Response:
    """The picture of a crop that no describer has taken yet: it lies in Redis only."""
    record = await asyncio.to_thread(store.get, event)
    crop_id = record.announced_crop_id if record is not None else None
    jpeg = await services.hub.picture(crop_id) if crop_id is not None and services.hub is not None else None
    if jpeg is None:
        raise _not_found(event)
    return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, no-cache"})


def _crop_file(store: EventStore, event: str, data_dir: Path) -> Path | None:
    """The picture's file, only ever one inside the data folder."""
    path = store.crop_path(event)
    if path is None:
        return None
    resolved = path.resolve()
    return resolved if resolved.is_relative_to(data_dir.resolve()) and resolved.is_file() else None


def _not_found(event: str) -> ApiError:
    return ApiError(404, f"There is no event '{event}', or it has no picture.", code="event_not_found")
