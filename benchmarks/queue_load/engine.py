"""An OpenAI-compatible server that is as slow, busy and faulty as it's told to be."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from benchmarks.queue_load.source import BAD_PICTURE

WORDS = ("A person", " in a red coat", " walks by", ".")


class PacedEngine:
    """Answers one request after the other.

    Args:
        seconds: each answer takes.
        lanes: so many at once.
        busy: share of requests that are refused with 503.
        hang: never answers.
    """

    def __init__(
        self, seconds: float, *, lanes: int = 1, busy: float = 0.0, hang: bool = False, seed: int | None = None
    ) -> None:
        self._seconds = seconds
        self._busy = busy
        self._hang = hang
        self._random = random.Random(seed)
        self._lanes = asyncio.Semaphore(lanes)
        self.asked = 0
        self.in_work = 0
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        app = FastAPI()
        app.post("/v1/chat/completions")(self._complete)
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> PacedEngine:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked += 1
        if self._random.random() < self._busy:
            return JSONResponse({"error": {"message": "busy"}}, 503)
        if BAD_PICTURE in _pictures(body):
            return JSONResponse({"error": {"message": "bad picture"}}, 500)
        return StreamingResponse(self._answer(), media_type="text/event-stream")

    async def _answer(self) -> AsyncIterator[str]:
        self.in_work += 1
        try:
            async with self._lanes:
                if self._hang:
                    await asyncio.sleep(3600)
                for word in WORDS:
                    await asyncio.sleep(self._seconds / len(WORDS))
                    yield _chunk([{"index": 0, "delta": {"content": word}, "finish_reason": None}])
            yield _chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
            yield _chunk([], usage={"prompt_tokens": 70, "completion_tokens": 5, "total_tokens": 75})
            yield "data: [DONE]\n\n"
        finally:
            self.in_work -= 1


def _pictures(body: dict[str, Any]) -> list[bytes]:
    parts = body["messages"][-1]["content"]
    return [
        base64.b64decode(part["image_url"]["url"].partition("base64,")[2])
        for part in parts
        if part["type"] == "image_url"
    ]


def _chunk(choices: list[dict[str, Any]], **more: Any) -> str:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "paced", "choices": choices}
    return f"data: {json.dumps({**head, **more})}\n\n"
