"""``POST /v1/responses``: what ``ultralytics.LLM`` calls by default."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from api.auth import caller_of
from api.errors import ApiError, invalid
from api.openai.answers import AnswerShape
from api.openai.dialects import dialect_of
from api.openai.fields import sampling_params
from api.openai.images import fetcher_of, load_pictures
from api.openai.response_background import Memory, in_background
from api.openai.response_items import input_items, output_items
from api.openai.response_log import EventLog
from api.openai.response_store import Item, ResponseStore, StoredResponse
from api.openai.responses_answer import ResponseAnswer
from api.openai.responses_request import UNSUPPORTED, ResponsesRequest, engine_messages
from api.openai.responses_stored import json_response, store_of
from api.openai.structured import wanted_structure
from api.openai.submission import (
    Deadline,
    Gathered,
    Submission,
    check_model,
    deadline_of,
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
from vlm_engine.engine import VLMEngine
from vlm_engine.stream import OutputStream

_log = logging.getLogger(__name__)

_RENAMES = {"max_tokens": "max_output_tokens", "messages": "input"}

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/responses", summary="Create a response", response_model=None)
async def create_response(request: Request, services: Provided) -> Response:
    deadline = deadline_of(request, services)
    engine = ready_engine(services)
    body = await read_json(request, deadline)
    store, owner = store_of(request), caller_of(request).id
    asked = await off_loop(len(body), lambda: read_response(body))
    check_model(asked.model, services)
    memory = _remember(asked, store, owner, len(body))
    submission = await off_loop(memory.size, lambda: _submission(asked, memory.context, engine))
    submission = await unless_gone(request, load_pictures(submission, fetcher_of(request), services.config))
    shape, keep_alive_s = submission.shape, services.config.server.sse_keep_alive_s
    answer = ResponseAnswer(services.model_name, asked, submission.params, memory.store is not None, shape)

    if asked.background:
        stream = await unless_gone(request, submit(engine, submission, answer.id, deadline))
        log = EventLog() if asked.stream else None
        queued = in_background(request, stream, answer, memory, deadline, log)
        return json_response(queued) if log is None else EventStream(log.after(), keep_alive_s=keep_alive_s)

    if asked.stream:
        stream = await unless_gone(request, submit(engine, submission, answer.id, deadline))
        return EventStream(_events(stream, answer, memory, deadline), stream.aclose, keep_alive_s=keep_alive_s)

    async def whole() -> Gathered:
        return await gather(await submit(engine, submission, answer.id, deadline), 1, deadline)

    response = answer.whole(await unless_gone(request, whole()))
    memory.keep(response)
    return json_response(response)


def read_response(body: bytes) -> ResponsesRequest:
    """The body as the request. Raises ApiError."""
    asked = parse(ResponsesRequest, body, UNSUPPORTED)
    asked.check()
    return asked


def _remember(asked: ResponsesRequest, store: ResponseStore, owner: str, size: int) -> Memory:
    """The conversation so far, and whether this response is kept. Raises a 400 when it can't be as asked."""
    earlier: tuple[Item, ...] = ()
    if asked.previous_response_id is not None:
        previous = _previous(asked.previous_response_id, store, owner)
        earlier = previous.context + output_items(previous.response.output)
        size += previous.size
    fits = store.keeps and size <= store.max_bytes
    if not fits and (asked.store or asked.background):
        raise invalid(
            f"The response can't be stored: it would take {size} bytes with all that it goes on from, "
            f"this server keeps {store.max_bytes if store.keeps else 0} "
            "(server.stored_responses, server.stored_responses_bytes).",
            param="background" if asked.background else "store",
        )
    kept = fits and asked.store is not False
    return Memory(store if kept else None, owner, earlier + input_items(asked.input), size)


def _previous(response_id: str, store: ResponseStore, owner: str) -> StoredResponse:
    try:
        entry = store.get(response_id, owner)
    except ApiError:
        raise invalid(
            f"Previous response with id '{response_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from None
    if entry.response.status not in ("completed", "incomplete"):
        raise invalid(
            f"The previous response is {entry.response.status}; only a finished one can be continued.",
            param="previous_response_id",
        )
    return entry


def _submission(asked: ResponsesRequest, context: tuple[Item, ...], engine: VLMEngine) -> Submission:
    """What the engine is asked; pictures decoded from base64. Raises ApiError."""
    params = sampling_params(
        asked,
        engine.default_params,
        n=1,
        max_tokens=asked.max_output_tokens,
        logprobs=asked.wanted_logprobs,
        renames=_RENAMES,
    )
    messages = [item.message for item in context]
    first = len(messages) - len(asked.input)
    wanted = wanted_structure(asked, asked.text.format if asked.text else None, "text.format")
    include_reasoning = asked.include_reasoning is not False
    shape = AnswerShape(dialect_of(engine.chat_template), asked.tool_use, wanted, include_reasoning)
    shape.check()
    return Submission(engine_messages(asked.instructions, messages, first), params, asked, _RENAMES, shape)


async def _events(
    stream: OutputStream, answer: ResponseAnswer, memory: Memory, deadline: Deadline
) -> AsyncGenerator[bytes, None]:
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
    # Stored before the client can know its id to be final: whoever saw the last event can go on from it.
    response = answer.whole(gathered)
    memory.keep(response)
    for event in answer.closing(response):
        yield event
