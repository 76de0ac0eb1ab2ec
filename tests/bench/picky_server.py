"""An OpenAI endpoint over real HTTP that refuses the fields a test names, and streams what the test decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from tests.pipeline.openai_server import OpenAIServer


class PickyServer(OpenAIServer):
    """``refuses``: names of body fields (and of stream options) that get a 400. ``chunks``: what an answer streams."""

    def __init__(self, refuses: tuple[str, ...] = (), chunks: list[dict[str, Any]] | None = None) -> None:
        super().__init__(_app(self))
        self.refuses = refuses
        self.chunks = chunks if chunks is not None else [text("a"), text("b")]
        self.bodies: list[dict[str, Any]] = []

    def __enter__(self) -> PickyServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def text(words: str, **usage: int) -> dict[str, Any]:
    """A chunk of text, with counts where given."""
    return {"choices": [{"index": 0, "delta": {"content": words}}], "usage": usage or None}


def _app(server: PickyServer) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": "picky"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = await request.json()
        server.bodies.append(body)
        for name in (*body, *body.get("stream_options", {})):
            if name in server.refuses:
                return JSONResponse({"error": {"message": f"{name} is unknown here"}}, 400)
        return StreamingResponse(_lines(server.chunks), media_type="text/event-stream")

    return app


def _lines(chunks: list[dict[str, Any]]) -> Iterator[str]:
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"
