"""``POST /v1/completions``: text goes on, without a chat template."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from api.errors import ApiError
from api.openai.answers import AnswerShape
from api.openai.chat import error_line
from api.openai.chat_answer import DONE
from api.openai.completions_answer import CompletionAnswer, Echo
from api.openai.completions_request import DEFAULT_MAX_TOKENS, UNSUPPORTED, CompletionRequest, Prompt
from api.openai.fields import sampling_params
from api.openai.structured import wanted_structure
from api.openai.submission import (
    Deadline,
    Gathered,
    Submission,
    check_model,
    deadline_of,
    gather,
    kept_tokens,
    off_loop,
    parse,
    pieces,
    read_json,
    ready_engine,
    submit_prompt,
)
from api.services import Provided
from api.streaming import EventStream, unless_gone
from vlm_engine.engine import VLMEngine
from vlm_engine.outputs import RequestOutput
from vlm_engine.prompt import PreparedPrompt
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.stream import OutputStream

_log = logging.getLogger(__name__)

_RENAMES = {"messages": "prompt"}

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/completions", summary="Complete a text", response_model=None)
async def create_completion(request: Request, services: Provided) -> Response:
    deadline = deadline_of(request, services)
    engine = ready_engine(services)
    body = await read_json(request, deadline)
    asked, submission = await off_loop(len(body), lambda: read_completion(body, engine.default_params))
    check_model(asked.model, services)
    answer = CompletionAnswer(
        services.model_name,
        asked.count,
        asked.logprobs,
        asked.include_usage,
        asked.usage_in_chunks,
        asked.prompt_logprobs,
    )

    async def begin() -> list[OutputStream]:
        return await _submit_all(engine, asked, submission, answer, deadline)

    if asked.stream:
        streams = await unless_gone(request, begin())

        async def close() -> None:
            await _close(streams)

        chunks = _chunks(streams, answer, asked, deadline)
        return EventStream(chunks, close, keep_alive_s=services.config.server.sse_keep_alive_s)

    async def whole() -> list[Gathered]:
        streams = await begin()
        try:
            prompts = [await gather(stream, asked.candidates, deadline) for stream in streams]
            return prompts if asked.generates else [prompt.without_output() for prompt in prompts]
        finally:
            await _close(streams)

    completion = answer.whole(await unless_gone(request, whole()))
    content = completion.model_dump_json(exclude_unset=True, warnings=False)
    return Response(content, media_type="application/json")


def read_completion(body: bytes, defaults: SamplingParams) -> tuple[CompletionRequest, Submission]:
    """The body as the request and as what the engine is asked. Raises ApiError."""
    asked = parse(CompletionRequest, body, UNSUPPORTED)
    asked.check()
    ranked = asked.candidates > asked.count
    params = sampling_params(
        asked,
        defaults,
        n=asked.candidates,
        # The engine always samples a token; where none is asked for it is left out.
        max_tokens=DEFAULT_MAX_TOKENS if asked.max_tokens is None else max(asked.max_tokens, 1),
        logprobs=0 if ranked and asked.logprobs is None else asked.logprobs,
        prompt_logprobs=asked.scored,
        renames=_RENAMES,
    )
    shape = AnswerShape(wanted=wanted_structure(asked, asked.response_format, "response_format"))
    return asked, Submission((), params, asked, _RENAMES, shape)


async def _submit_all(
    engine: VLMEngine,
    asked: CompletionRequest,
    submission: Submission,
    answer: CompletionAnswer,
    deadline: Deadline,
) -> list[OutputStream]:
    """Every prompt as a request of its own; all are accepted, or none."""
    keep = kept_tokens(engine, asked, submission.params)
    streams: list[OutputStream] = []
    echoes: list[Echo] = []
    try:
        for number, prompt in enumerate(asked.prompt):

            async def prepare(prompt: Prompt = prompt) -> PreparedPrompt:
                if isinstance(prompt, str):
                    prepared = await engine.prepare_text(prompt, truncate_prompt_tokens=keep)
                else:
                    prepared = await engine.prepare_tokens(prompt, truncate_prompt_tokens=keep)
                if asked.echo:
                    echoes.append(_echo(engine, prompt, prepared, keep))
                return prepared

            name = f"{answer.id}-{number}"
            streams.append(await submit_prompt(engine, prepare, submission, name, deadline))
    except BaseException:
        await _close(streams)
        raise
    answer.echoes = echoes
    return streams


def _echo(engine: VLMEngine, prompt: Prompt, prepared: PreparedPrompt, keep: int | None) -> Echo:
    """The prompt as it was given; as its tokens read, where it came as tokens or was cut."""
    first: str = engine.tokenizer.decode(prepared.token_ids[:1])
    if isinstance(prompt, str) and keep is None:
        return Echo(prompt, first)
    return Echo(engine.tokenizer.decode(prepared.token_ids, clean_up_tokenization_spaces=False), first)


async def _close(streams: Sequence[OutputStream]) -> None:
    for stream in streams:
        await stream.aclose()


async def _chunks(
    streams: Sequence[OutputStream], answer: CompletionAnswer, asked: CompletionRequest, deadline: Deadline
) -> AsyncGenerator[bytes, None]:
    prompts = [Gathered.empty(asked.candidates, stream.num_prompt_tokens) for stream in streams]
    for chunk in answer.opening(prompts):
        yield chunk
    try:
        async with aclosing(_merged(streams, deadline)) as source:
            async for number, new in source:
                piece = new if asked.generates else new.without_output()
                prompts[number].add(piece)
                for chunk in answer.piece(number, piece, prompts):
                    yield chunk
    except ApiError as error:
        _log.warning("Completion %s failed after its answer began: %s", answer.id, error.message)
        yield error_line(error)
        yield DONE
        return
    for chunk in answer.closing(prompts):
        yield chunk


async def _merged(
    streams: Sequence[OutputStream], deadline: Deadline
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The pieces of all prompts as they come, with the prompt's number. Raises the first failure."""
    queue: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue()

    async def pump(number: int, stream: OutputStream) -> None:
        try:
            async with aclosing(pieces(stream, deadline)) as source:
                async for piece in source:
                    queue.put_nowait((number, piece))
        except Exception as error:  # raised again by whoever reads the queue
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(pumps)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
