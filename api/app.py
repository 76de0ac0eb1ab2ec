"""The whole HTTP side as one FastAPI app over its services."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api import auth, health, metrics, page, source
from api.errors import install_handlers
from api.middleware import BodyLimit, RequestFrame
from api.openai import chat, models, responses
from api.openai.chat_request import ChatRequest
from api.openai.fetch import PictureFetcher
from api.openai.responses_request import ResponsesRequest
from api.operator import cameras, engine, events, queue, stream
from api.origin import CheckOrigin
from api.services import Services

_DESCRIPTION = (
    "Cameras into words: people found by YOLO26, described by a vision-language model that answers chats in the same "
    f"process. Free software under AGPL-3.0-or-later; the source of this very server is at {source.PATH}."
)


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
    app.state.keys = auth.ApiKeys(services.config.server.api_keys)
    app.state.page = page.Page()
    app.state.fetcher = PictureFetcher(services.config.pictures)
    app.state.started = int(time.time())
    app.state.closing = asyncio.Event()
    app.state.open_streams = 0

    install_handlers(app)
    server = services.config.server
    app.add_middleware(
        BodyLimit,
        limit=server.max_body_bytes,
        total=server.max_total_body_bytes,
        seconds=server.body_timeout_s,
    )
    app.add_middleware(CheckOrigin, hosts=server.allowed_hosts, any_host=app.state.keys.required, own_host=server.host)
    app.add_middleware(RequestFrame)  # added last = outermost

    for router in (page.router, source.router, health.router, auth.router):
        app.include_router(router)
    for router in (
        metrics.router,
        chat.router,
        responses.router,
        models.router,
        cameras.router,
        events.router,
        queue.router,
        engine.router,
        stream.router,
    ):
        app.include_router(router, dependencies=[Depends(auth.require_key)])
    _describe_bodies(app)
    return app


def _describe_bodies(app: FastAPI) -> None:
    """Adds to /openapi.json the bodies that we read ourselves (off the event loop, so FastAPI doesn't know them)."""
    bodies: dict[str, type[BaseModel]] = {"/v1/chat/completions": ChatRequest, "/v1/responses": ResponsesRequest}
    _, definitions = models_json_schema(
        [(model, "validation") for model in bodies.values()], ref_template="#/components/schemas/{model}"
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
            schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            for path, model in bodies.items():
                reference = {"$ref": f"#/components/schemas/{model.__name__}"}
                schema["paths"][path]["post"]["requestBody"] = {
                    "required": True,
                    "content": {"application/json": {"schema": reference}},
                }
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
