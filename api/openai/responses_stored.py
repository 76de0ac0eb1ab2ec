"""Stored responses: retrieve, cancel, delete, and what they were made from."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from api.auth import caller_of
from api.errors import invalid
from api.openai.response_items import item_page
from api.openai.response_store import ResponseStore, StoredResponse
from api.services import Provided
from api.streaming import EventStream

router = APIRouter(prefix="/v1/responses", tags=["openai"])

ResponseId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,128}$", description="Of a stored response.")]


def store_of(request: Request) -> ResponseStore:
    """The app's store."""
    store: ResponseStore = request.app.state.responses
    return store


def json_response(model: Any) -> Response:
    """A model of the openai package as the OpenAI API sends it."""
    return Response(model.model_dump_json(exclude_unset=True), media_type="application/json")


@router.get("/{response_id}", summary="Retrieve a stored response", response_model=None)
async def retrieve_response(
    request: Request,
    response_id: ResponseId,
    services: Provided,
    stream: Annotated[bool | None, Query(description="Of responses made with background and stream alone.")] = None,
    starting_after: Annotated[
        int | None, Query(ge=0, le=2**31, description="Sequence number of the last event that was seen; with stream.")
    ] = None,
) -> Response:
    """As it stands, or its events from the first or from a given one on, those to come included."""
    _refuse_unknown(request, {"stream", "starting_after"})
    if starting_after is not None and not stream:
        raise invalid("starting_after is only allowed with stream=true.", param="starting_after")
    entry = _entry(request, response_id)
    if not stream:
        return json_response(entry.response)
    if entry.log is None:
        raise invalid(
            "Only the stream of a response made with background: true and stream: true can be taken up again.",
            param="stream",
        )
    after = -1 if starting_after is None else starting_after
    return EventStream(entry.log.after(after), keep_alive_s=services.config.server.sse_keep_alive_s)


@router.delete("/{response_id}", summary="Delete a stored response")
async def delete_response(request: Request, response_id: ResponseId) -> dict[str, Any]:
    """One that is still being made is given up."""
    store_of(request).delete(response_id, caller_of(request).id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/{response_id}/cancel", summary="Cancel a background response", response_model=None)
async def cancel_response(request: Request, response_id: ResponseId) -> Response:
    """One that is done already comes back as it is."""
    entry = _entry(request, response_id)
    if entry.task is None:
        raise invalid(
            "Only responses made with background: true can be cancelled; for others close the connection.",
            param="response_id",
            code="not_cancellable",
        )
    if entry.running:
        entry.task.cancel()
        await asyncio.wait({entry.task})
    return json_response(_entry(request, response_id).response)


@router.get("/{response_id}/input_items", summary="What a stored response was made from", response_model=None)
async def list_input_items(
    request: Request,
    response_id: ResponseId,
    after: Annotated[str | None, Query(max_length=256, description="Last id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """All items, those of earlier responses included."""
    _refuse_unknown(request, {"after", "limit", "order"})
    entry = _entry(request, response_id)
    return json_response(item_page(entry.context, after=after, limit=limit, newest_first=order == "desc"))


def _entry(request: Request, response_id: str) -> StoredResponse:
    return store_of(request).get(response_id, caller_of(request).id)


def _refuse_unknown(request: Request, known: set[str]) -> None:
    for name in request.query_params:
        if name not in known:
            raise invalid(f"Unknown parameter: '{name[:100]}'.", param=name[:100], code="unknown_parameter")
