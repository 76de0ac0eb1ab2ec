"""``POST /v1/responses``: what ``ultralytics.LLM`` calls by default. Nothing is stored, so there is nothing to GET."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from api.errors import ApiError
from api.openai.fields import sampling_params
from api.openai.images import fetcher_of, load_pictures
from api.openai.responses_answer import ResponseAnswer
from api.openai.responses_request import UNSUPPORTED, ResponsesRequest, engine_messages
from api.openai.submission import (
    Gathered,
    Submission,
    check_model,
    gather,
    off_loop,
    parse,
    pieces,
    read_json,
    ready_engine,
    submit,
)
from api.services import Provided
from api.streaming import EventStream, unless_gone
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.stream import OutputStream

_log = logging.getLogger(__name__)

_RENAMES = {"max_tokens": "max_output_tokens"}

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/responses", summary="Create a response", response_model=None)
async def create_response(request: Request, services: Provided) -> Response:
    body = await read_json(request)
    engine = ready_engine(services)
    asked, submission = await off_loop(len(body), lambda: read_response(body, engine.default_params))
    check_model(asked.model, services)
    submission = await unless_gone(request, load_pictures(submission, fetcher_of(request), services.config))
    answer = ResponseAnswer(services.model_name, asked, submission.params)
    deadline = asyncio.get_running_loop().time() + services.config.server.request_timeout_s

    if asked.stream:
        stream = await unless_gone(request, submit(engine, submission, answer.id, deadline))
        return EventStream(_events(stream, answer, deadline), stream.aclose)

    async def whole() -> Gathered:
        return await gather(await submit(engine, submission, answer.id, deadline), 1, deadline)

    response = answer.whole(await unless_gone(request, whole()))
    return Response(response.model_dump_json(exclude_unset=True), media_type="application/json")


def read_response(body: bytes, defaults: SamplingParams) -> tuple[ResponsesRequest, Submission]:
    """The body as the request and as what the engine is asked; pictures decoded from base64. Raises ApiError."""
    asked = parse(ResponsesRequest, body, UNSUPPORTED)
    params = sampling_params(
        asked,
        defaults,
        n=1,
        max_tokens=asked.max_output_tokens,
        logprobs=asked.wanted_logprobs,
        renames=_RENAMES,
    )
    return asked, Submission(engine_messages(asked), params, asked, _RENAMES)


async def _events(stream: OutputStream, answer: ResponseAnswer, deadline: float) -> AsyncGenerator[bytes, None]:
    gathered = Gathered.empty(1)
    for event in answer.opening():
        yield event
    try:
        async with aclosing(pieces(stream, deadline)) as source:
            async for piece in source:
                gathered.add(piece)
                for event in answer.piece(piece):
                    yield event
    except ApiError as error:
        _log.warning("Response %s failed after its answer began: %s", answer.id, error.message)
        yield answer.failed(error)
        return
    for event in answer.closing(gathered):
        yield event
