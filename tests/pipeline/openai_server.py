"""A small OpenAI-compatible server on a free port whose answers a test decides."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse


@dataclass
class Behaviour:
    """How the server answers; a test changes it while it runs.

    Attributes:
        refusals: answers instead of words, used up one by one: (status, headers).
        words: the answer, a chunk a word.
        pause_s: before each word.
        bad: pictures at which the server fails with 500.
        cut: how many answers to break off after the first word.
        hang: pictures at which the server never answers.
        refuses: fields of requests that it answers with 400, and "pictures" for more than one picture.
        reasoning: words that come as `reasoning_content`, before the answer.
        choiceless: answers have no choices.
        finish: the finish reason.
        seen: request bodies, in order.
    """

    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    words: str = "A person in red ."
    pause_s: float = 0.0
    bad: set[bytes] = field(default_factory=set)
    hang: set[bytes] = field(default_factory=set)
    cut: int = 0
    refuses: set[str] = field(default_factory=set)
    reasoning: str = ""
    choiceless: bool = False
    finish: str = "stop"
    seen: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    running: int = 0

    def pictures(self) -> list[bytes]:
        return [picture_of(body) for body in self.seen]


def pictures_of(body: dict[str, Any]) -> list[bytes]:
    urls = [part["image_url"]["url"] for part in body["messages"][-1]["content"] if part["type"] == "image_url"]
    return [base64.b64decode(url.partition("base64,")[2]) for url in urls]


def picture_of(body: dict[str, Any]) -> bytes:
    [picture] = pictures_of(body)
    return picture


class OpenAIServer:
    """Real HTTP. ``base_url`` is known before :meth:`start`, so that a client can come too early.

    ``app``: another server's routes in place of those that :class:`Behaviour` steers.
    """

    def __init__(self, app: FastAPI | None = None) -> None:
        self.behaviour = Behaviour()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        config = uvicorn.Config(app or _app(self), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: self._server.started)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.should_exit = True
            self._thread.join(10)
        self._socket.close()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come about in time"
        time.sleep(0.01)


def _app(server: OpenAIServer) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        behaviour, body = server.behaviour, await request.json()
        behaviour.seen.append(body)
        if behaviour.refusals:
            status, headers = behaviour.refusals.pop(0)
            return JSONResponse({"error": {"message": "no", "code": "refused"}}, status, headers)
        pictures = pictures_of(body)
        if behaviour.refuses & {*body, *(["pictures"] if len(pictures) > 1 else [])}:
            return JSONResponse({"error": {"message": "not supported here", "code": "unsupported"}}, 400)
        if behaviour.bad & {*pictures}:
            return JSONResponse({"error": {"message": "Analysis unavailable"}}, 500)
        return StreamingResponse(_chunks(behaviour, pictures), media_type="text/event-stream")

    return app


async def _chunks(behaviour: Behaviour, pictures: list[bytes]) -> AsyncIterator[str]:
    behaviour.running += 1
    behaviour.most_at_once = max(behaviour.most_at_once, behaviour.running)
    try:
        if behaviour.hang & {*pictures}:
            await asyncio.sleep(3600)
        if behaviour.choiceless:
            yield f"data: {json.dumps(_head() | {'choices': []})}\n\ndata: [DONE]\n\n"
            return
        for thought in behaviour.reasoning.split():
            yield _chunk({"role": "assistant", "reasoning_content": f"{thought} "}, None)
        for n, word in enumerate(behaviour.words.split()):
            await asyncio.sleep(behaviour.pause_s)
            yield _chunk({"role": "assistant", "content": word if n == 0 else f" {word}"}, None)
            if n == 0 and behaviour.cut:
                behaviour.cut -= 1
                raise RuntimeError("broken off for the test")
        yield _chunk({}, behaviour.finish)
        usage = {"prompt_tokens": 70, "completion_tokens": 5, "total_tokens": 75}
        details = {"prompt_tokens_details": {"cached_tokens": 64}}
        yield f"data: {json.dumps(_head() | {'choices': [], 'usage': usage | details})}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        behaviour.running -= 1


def _head() -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "remote"}


def _chunk(delta: dict[str, str], finish: str | None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps(_head() | {'choices': [choice]})}\n\n"
