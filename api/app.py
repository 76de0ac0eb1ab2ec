"""The whole HTTP side as one FastAPI app over its services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api import auth, health, metrics, page, source
from api.errors import install_handlers
from api.limits import LimitRequests, Limits
from api.middleware import BodyLimit, RequestFrame
from api.openai import chat, completions, models, responses, responses_stored, tokenize
from api.openai.chat_request import ChatRequest
from api.openai.completions_request import CompletionRequest
from api.openai.fetch import PictureFetcher
from api.openai.response_store import ResponseStore
from api.openai.responses_request import ResponsesRequest
from api.openai.tokenize import DetokenizeRequest, TokenizeChat, TokenizeText
from api.operator import camera_settings, cameras, dead_letters, deliveries, engine, events, queue, stream
from api.origin import CheckOrigin
from api.services import Services
from pipeline.config.server import Role
from vlm_engine.engine import EngineState

_DESCRIPTION = (
    "Cameras into words: people found by YOLO26, described by a vision-language model that answers chats in the same "
    f"process. Free software under AGPL-3.0-or-later; the source of this very server is at {source.PATH}."
)

ROUTERS: Mapping[Role, Sequence[APIRouter]] = {
    "chat": (
        chat.router,
        completions.router,
        responses.router,
        responses_stored.router,
        models.router,
        tokenize.router,
    ),
    "viewer": (
        metrics.router,
        cameras.router,
        events.router,
        queue.router,
        dead_letters.router,
        engine.router,
        stream.router,
        deliveries.router,
    ),
    "admin": (camera_settings.router, deliveries.admin_router),
}
"""What needs which role. Changes below the viewer's routes need the role operator (:func:`api.auth.require`)."""


def create_app(services: Services) -> FastAPI:
    """The app; everything it works with is ``app.state.services``.

    ``app.state.closing`` is an :class:`asyncio.Event`; set, it ends the open event streams, which uvicorn waits for on
    shutdown. :class:`api.server.ApiServer` sets it.
    """
    app = FastAPI(
        title="Watchword",
        version=page.watchword_version(),
        description=_DESCRIPTION,
        license_info={"name": "AGPL-3.0-or-later", "url": "https://www.gnu.org/licenses/agpl-3.0.html"},
        # The stock documentation pages load scripts from elsewhere, which the page's policy forbids.
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    server = services.config.server
    app.state.keys = auth.ApiKeys(server)
    app.state.limits = Limits(server.max_open_requests, room=partial(_require_room, services))
    app.state.responses = ResponseStore(
        server.stored_responses, server.stored_responses_bytes, server.stored_responses_age_s
    )
    app.state.page = page.Page()
    app.state.fetcher = PictureFetcher(services.config.pictures)
    app.state.started = int(time.time())
    app.state.closing = asyncio.Event()
    app.state.open_streams = 0

    install_handlers(app)
    app.add_middleware(
        BodyLimit, limit=server.max_body_bytes, total=server.max_open_body_bytes, seconds=server.body_timeout_s
    )
    app.add_middleware(CheckOrigin, hosts=server.allowed_hosts, any_host=app.state.keys.required, own_host=server.host)
    app.add_middleware(LimitRequests, limits=app.state.limits, keys=app.state.keys)
    app.add_middleware(RequestFrame)  # added last = outermost

    for router in (page.router, source.router, health.router, auth.router, tokenize.public_router):
        app.include_router(router)
    for role, routers in ROUTERS.items():
        for router in routers:
            app.include_router(router, dependencies=[Depends(auth.require(role))])
    _describe_bodies(app)
    return app


def _require_room(services: Services, preparing: int) -> None:
    """Raises OverloadedError when the engine's queue has no room; an engine that isn't ready is the route's to tell."""
    if services.engine is not None and services.engine.state is EngineState.READY:
        services.engine.require_room(preparing)


_BODIES: Mapping[str, Sequence[type[BaseModel]]] = {
    "/v1/chat/completions": (ChatRequest,),
    "/v1/completions": (CompletionRequest,),
    "/v1/responses": (ResponsesRequest,),
    "/tokenize": (TokenizeText, TokenizeChat),
    "/detokenize": (DetokenizeRequest,),
}


def _describe_bodies(app: FastAPI) -> None:
    """Adds to /openapi.json the bodies that we read ourselves (off the event loop, so FastAPI doesn't know them)."""
    _, definitions = models_json_schema(
        [(model, "validation") for kinds in _BODIES.values() for model in kinds],
        ref_template="#/components/schemas/{model}",
    )

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                license_info=app.license_info,
                routes=app.routes,
            )
            schema.setdefault("components", {}).setdefault("schemas", {}).update(
                {**camera_settings.SCHEMAS, **definitions["$defs"]}
            )
            for path, kinds in _BODIES.items():
                references = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in kinds]
                schema["paths"][path]["post"]["requestBody"] = {
                    "required": True,
                    "content": {
                        "application/json": {"schema": references[0] if len(kinds) == 1 else {"anyOf": references}}
                    },
                }
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
