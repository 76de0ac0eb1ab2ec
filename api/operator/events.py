"""``/api/events``: the list with its search, one event with its picture, and asking for a description."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from api.errors import ApiError, invalid
from api.operator.parts import EventPath, hub_of, refuse_cross_site, store_of
from api.services import Provided, Services
from pipeline.clock import SystemClock
from pipeline.describe_again import describe_again
from pipeline.embedder import EmbeddingsUnavailable
from pipeline.messages import EventState
from pipeline.store import Answer, BadCursor, EventFilter, EventStore
from pipeline.store.vectors import VectorMismatch

DEFAULT_LIMIT = 50
MAX_LIMIT = 200

router = APIRouter(prefix="/api/events", tags=["operator"])


class EventList(BaseModel):
    events: list[dict[str, Any]] = Field(description="Newest first.")
    next: str | None = Field(description="Give it as `before` for older ones; null at the end.")


class DescribeAnswer(BaseModel):
    queued: bool = Field(description="Whether a description is on its way; watch the event for it.")
    answer: Answer = Field(description="accepted: queued now. under_way: it was already. described: words are there.")
    event: dict[str, Any]


def event_filter(
    camera: Annotated[str | None, Query(pattern=r"^[a-z0-9_-]{1,64}$")] = None,
    state: EventState | None = None,
    q: Annotated[
        str,
        Query(
            max_length=200,
            description='Words that the description must hold, in any case and with or without diacritics; "a phrase", '
            "begin*, -without. Other characters mean nothing.",
        ),
    ] = "",
    label: Annotated[str | None, Query(min_length=1, max_length=100)] = None,
    zone: Annotated[str | None, Query(min_length=1, max_length=100)] = None,
    rule: Annotated[str | None, Query(pattern=r"^[a-z0-9_-]{1,64}$", description="An alert rule that matched.")] = None,
    attribute: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^[^:]{1,100}:.{1,100}$")]] | None,
        Query(max_length=16, description="path:value, such as upper.colours:red; all of several must hold."),
    ] = None,
    since: Annotated[AwareDatetime | None, Query(description="First seen then or later; ISO 8601 with offset.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="First seen before then.")] = None,
) -> EventFilter:
    """The query parameters that say which events are wanted."""
    pairs = tuple((path, value) for path, _, value in (pair.partition(":") for pair in attribute or ()))
    return EventFilter(
        camera=camera,
        state=state,
        label=label,
        zone=zone,
        rule=rule,
        attributes=pairs,
        text=q,
        since=since.timestamp() if since else None,
        until=until.timestamp() if until else None,
    )


@router.get("", summary="Events, newest first; search")
async def list_events(
    services: Provided,
    where: Annotated[EventFilter, Depends(event_filter)],
    before: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
) -> EventList:
    store = store_of(services)
    try:
        page = await asyncio.to_thread(store.list_events, where, before=before, limit=limit)
    except BadCursor as error:
        raise invalid(str(error), param="before", code="invalid_cursor") from None
    return EventList(events=[event.to_api() for event in page.events], next=page.next)


class SimilarEvents(BaseModel):
    events: list[dict[str, Any]] = Field(description="Nearest in meaning first; `similarity` is the cosine, -1 to 1.")


@router.get("/similar", summary="Events by meaning, nearest first")
async def similar_events(
    services: Provided,
    where: Annotated[EventFilter, Depends(event_filter)],
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
) -> SimilarEvents:
    """As the list, but `q` is a text whose meaning counts, not its words. Needs `search.embeddings_url`."""
    store, embedder = store_of(services), services.embedder
    if embedder is None:
        raise ApiError(404, "No server for embeddings is configured (search.embeddings_url).", code="no_embeddings")
    if not where.text.strip():
        raise invalid("q is empty: it is the text whose meaning is looked for.", param="q")
    try:
        [vector] = await embedder.embed([where.text])
        facts = replace(where, text="")
        found = dict(await asyncio.to_thread(store.vectors.nearest, embedder.model, vector, facts, limit))
    except (EmbeddingsUnavailable, VectorMismatch) as error:
        raise ApiError(503, f"Events can't be found by meaning now: {error}.", code="embeddings_unavailable") from None
    records = await asyncio.to_thread(store.get_all, list(found))
    return SimilarEvents(events=[record.to_api() | {"similarity": found[record.id]} for record in records])


@router.get("/{event}", summary="One event, with its pictures and the request behind its description")
async def show_event(event: EventPath, services: Provided) -> dict[str, Any]:
    store = store_of(services)
    record = await asyncio.to_thread(store.get, event)
    if record is None:
        raise _not_found(event)
    description = await asyncio.to_thread(store.description, event)
    names = await asyncio.to_thread(store.pictures, event)
    pictures = [{"sha256": name, "url": f"/api/events/{event}/pictures/{name}.jpg"} for name in names]
    return record.to_api() | {"pictures": pictures, "request": description.to_api() if description else None}


@router.post(
    "/{event}/describe",
    summary="Ask for a description",
    status_code=202,
    dependencies=[Depends(refuse_cross_site)],
    responses={200: {"model": DescribeAnswer, "description": "It is described; nothing was queued."}},
)
async def describe_event(
    event: EventPath,
    services: Provided,
    response: Response,
    force: Annotated[bool, Query(description="Also when there is a description: another one takes its place.")] = False,
) -> DescribeAnswer:
    """Has the event's picture put into words, with the model and the words that are configured now.

    Words that are there stay until others come. Asking again while one is on its way changes nothing.
    """
    store, hub = store_of(services), hub_of(services)
    deadline_s = services.config.describer.on_demand_deadline_s
    asking = await describe_again(store, hub, event, force=force, deadline_s=deadline_s, clock=SystemClock())
    if asking is None:
        raise _not_found(event)
    if asking.answer is Answer.NO_PICTURE:
        raise ApiError(409, f"No picture of event '{event}' is kept, so it can't be described.", code="no_picture")
    queued = asking.answer is not Answer.DESCRIBED
    response.status_code = 202 if queued else 200
    return DescribeAnswer(queued=queued, answer=asking.answer, event=asking.event.to_api())


@router.get("/{event}/crop.jpg", summary="The event's picture", response_class=Response)
async def show_crop(event: EventPath, request: Request, services: Provided) -> Response:
    """The best picture so far. It may be replaced by a better one, so caches must ask (ETag)."""
    store = store_of(services)
    sha256 = await asyncio.to_thread(store.crop, event)
    if sha256 is None:
        return await _waiting_crop(store, event, services)
    headers = {"ETag": f'"{sha256}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    jpeg = await asyncio.to_thread(store.read_picture, sha256)
    if jpeg is None:
        raise _not_found(event)
    return Response(jpeg, media_type="image/jpeg", headers=headers)


@router.get("/{event}/pictures/{sha256}.jpg", summary="One of the event's pictures", response_class=Response)
async def show_picture(
    event: EventPath, sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$")], services: Provided
) -> Response:
    """A picture by its content: what is under this address never changes."""
    jpeg = await asyncio.to_thread(store_of(services).picture, event, sha256)
    if jpeg is None:
        raise _not_found(event)
    headers = {"Cache-Control": "private, max-age=86400, immutable"}
    return Response(jpeg, media_type="image/jpeg", headers=headers)


async def _waiting_crop(store: EventStore, event: str, services: Services) -> Response:
    """The picture of a crop that no describer has taken yet: it lies in Redis only."""
    record = await asyncio.to_thread(store.get, event)
    crop_id = record.announced_crop_id if record is not None else None
    jpeg = await services.hub.picture(crop_id) if crop_id is not None and services.hub is not None else None
    if jpeg is None:
        raise _not_found(event)
    return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, no-cache"})


def _not_found(event: str) -> ApiError:
    return ApiError(404, f"There is no event '{event}', or it has no picture.", code="event_not_found")
