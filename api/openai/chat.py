"""``POST /v1/chat/completions``."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from api.errors import ApiError
from api.openai.answers import AnswerShape
from api.openai.chat_answer import DONE, ChatAnswer
from api.openai.chat_request import UNSUPPORTED, ChatRequest, engine_messages
from api.openai.dialects import Dialect, dialect_of
from api.openai.fields import sampling_params
from api.openai.images import fetcher_of, load_pictures
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
from api.streaming import EventStream, sse, unless_gone
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.stream import OutputStream

_log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/chat/completions", summary="Create a chat completion", response_model=None)
async def create_chat_completion(request: Request, services: Provided) -> Response:
    deadline = deadline_of(request, services)
    engine = ready_engine(services)
    body = await read_json(request, deadline)
    dialect = dialect_of(engine.chat_template)
    asked, submission = await off_loop(len(body), lambda: read_chat(body, engine.default_params, dialect))
    check_model(asked.model, services)
    submission = await unless_gone(request, load_pictures(submission, fetcher_of(request), services.config))
    answer = ChatAnswer(
        services.model_name,
        asked.wanted_logprobs is not None,
        asked.include_usage,
        asked.usage_in_chunks,
        asked.prompt_logprobs,
        submission.shape,
    )
    n = submission.params.n

    if asked.stream:
        stream = await unless_gone(request, submit(engine, submission, answer.id, deadline))
        keep_alive_s = services.config.server.sse_keep_alive_s
        return EventStream(_chunks(stream, answer, n, deadline), stream.aclose, keep_alive_s=keep_alive_s)

    async def whole() -> Gathered:
        return await gather(await submit(engine, submission, answer.id, deadline), n, deadline)

    completion = answer.whole(await unless_gone(request, whole()))
    return Response(completion.model_dump_json(exclude_unset=True), media_type="application/json")


def read_chat(body: bytes, defaults: SamplingParams, dialect: Dialect) -> tuple[ChatRequest, Submission]:
    """The body as the request and as what the engine is asked; pictures decoded from base64. Raises ApiError."""
    asked = parse(ChatRequest, body, UNSUPPORTED)
    asked.check()
    renames = {"max_tokens": "max_completion_tokens"} if asked.max_tokens is None else {}
    params = sampling_params(
        asked,
        defaults,
        n=asked.n or 1,
        max_tokens=asked.longest,
        logprobs=asked.wanted_logprobs,
        prompt_logprobs=asked.prompt_logprobs,
        renames=renames,
    )
    wanted = wanted_structure(asked, asked.response_format, "response_format")
    shape = AnswerShape(dialect, asked.tool_use, wanted, asked.include_reasoning is not False)
    shape.check()
    return asked, Submission(engine_messages(asked.messages), params, asked, renames, shape)


async def _chunks(stream: OutputStream, answer: ChatAnswer, n: int, deadline: Deadline) -> AsyncGenerator[bytes, None]:
    gathered = Gathered.empty(n, stream.num_prompt_tokens)
    for chunk in answer.opening(gathered):
        yield chunk
    try:
        async with aclosing(pieces(stream, deadline)) as source:
            async for piece in source:
                gathered.add(piece)
                for chunk in answer.piece(piece, gathered):
                    yield chunk
    except ApiError as error:
        _log.warning("Chat %s failed after its answer began: %s", answer.id, error.message)
        yield error_line(error)
        yield DONE
        return
    for chunk in answer.closing(gathered):
        yield chunk


def error_line(error: ApiError) -> bytes:
    """A failure after the 200: the error object as a data line, which the official clients raise."""
    return sse(json.dumps(error.body()))
