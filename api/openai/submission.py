"""From a request body to the engine's pieces: parsed off the event loop, refused before anything is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, TypeVar

import pydantic_core
from fastapi import Request
from pydantic import ValidationError

from api.errors import ApiError, describe_validation, engine_dead, from_engine, invalid
from api.limits import Slot
from api.openai.answers import PROMPT_TAIL, AnswerShape
from api.openai.fields import Neutral, SamplingFields, StrictModel, refuse_unsupported
from api.services import Services
from vlm_engine.engine import EngineState, VLMEngine
from vlm_engine.errors import EngineError
from vlm_engine.outputs import FinishReason, PositionLogprobs, RequestOutput
from vlm_engine.prompt import Message, PreparedPrompt
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.stream import OutputStream

M = TypeVar("M", bound=StrictModel)
T = TypeVar("T")

OFF_LOOP_BYTES = 64 * 1024
"""Bodies from this size are parsed in a thread: JSON and base64 of megabytes would stall every other stream."""

_READER = ThreadPoolExecutor(1, thread_name_prefix="body-reader")
"""One for the process: readers share the interpreter's lock with the event loop, and each further one would only leave
the loop a smaller share of it."""

LOADING_RETRY_S = 5

TIMEOUT_HEADER = "X-Request-Timeout"


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request must be answered, and the slot it was let in with.

    Attributes:
        at: on the event loop's clock, in seconds.
        seconds: the time allowed in all.
        knob: who said so: the configuration's key or the request's header.
        slot: told when the engine's queue has the request.
    """

    at: float
    seconds: float
    knob: str
    slot: Slot

    def passed(self) -> ApiError:
        """The 504 for it."""
        message = f"The request took longer than the {self.seconds:g} s that it may take ({self.knob})."
        return ApiError(504, message, code="request_timeout", headers={"X-Should-Retry": "false"})


def deadline_of(request: Request, services: Services) -> Deadline:
    """The server's own, or a shorter one by the header X-Request-Timeout (seconds). Raises a 400 for a longer one."""
    most, given = services.config.server.request_timeout_s, request.headers.get(TIMEOUT_HEADER)
    now, slot = asyncio.get_running_loop().time(), request.state.slot
    if given is None:
        return Deadline(now + most, most, "server.request_timeout_s", slot)
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not isfinite(seconds) or not 0 < seconds <= most:
        raise invalid(
            f"{TIMEOUT_HEADER} is {given[:40]!r}, allowed are seconds, more than 0 and at most {most:g} "
            "(server.request_timeout_s).",
            param=TIMEOUT_HEADER,
        )
    return Deadline(now + seconds, seconds, TIMEOUT_HEADER, slot)


@dataclass(frozen=True, slots=True)
class Submission:
    """What one request asks of the engine.

    Attributes:
        fields: the request, for what is neither messages nor sampling.
        renames: the engine's parameter names -> those this client used, for error messages.
        shape: what the answer may consist of; takes note of the prompt when it is known.
    """

    messages: Sequence[Message]
    params: SamplingParams
    fields: SamplingFields
    renames: Mapping[str, str] = field(default_factory=dict)
    shape: AnswerShape = field(default_factory=AnswerShape)


async def read_json(request: Request, deadline: Deadline | None = None) -> bytes:
    """The body. Anything but application/json is refused: a foreign web page can send other types without asking.

    A request with a ``deadline`` is for the engine's queue: when that has no room, it is refused once its body is
    there, before it is parsed.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(415, "The Content-Type must be application/json.", code="unsupported_media_type")
    body = await request.body()
    if deadline is not None:
        try:
            async with asyncio.timeout_at(deadline.at):
                await deadline.slot.queue_up()
        except TimeoutError:
            raise deadline.passed() from None
    return body


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Runs ``work``, in a thread when ``size`` bytes are much."""
    if size < OFF_LOOP_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_READER, work)


def parse(model: type[M], body: bytes, unsupported: Neutral) -> M:
    """The body as ``model``. Raises a 400 that names the field at fault."""
    return validated(model, read_object(body), unsupported)


def read_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises a 400."""
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    return data


def validated(model: type[M], data: dict[str, Any], unsupported: Neutral) -> M:
    """``data`` as ``model``. Raises a 400 that names the field at fault."""
    try:
        return model.model_validate(refuse_unsupported(data, unsupported))
    except ValidationError as error:
        raise describe_validation(error.errors(include_url=False, include_input=False)) from None


def ready_engine(services: Services) -> VLMEngine:
    """The engine, or 503 with what is the matter."""
    engine = services.engine
    if engine is None:
        raise engine_dead("This server runs no engine of its own (engine.backend is 'openai').")
    if engine.state is EngineState.READY:
        return engine
    if engine.state is not EngineState.DEAD and engine.error is None:
        raise ApiError(
            503,
            f"The model {services.model_name} is still loading; try again in a moment.",
            code="engine_loading",
            headers={"Retry-After": str(LOADING_RETRY_S)},
        )
    raise engine_dead("The engine has stopped after an error; the server's log says why.")


def check_model(asked: str | None, services: Services) -> None:
    """Raises 404 for a model that isn't the one served."""
    if asked is not None and asked != services.model_name:
        raise ApiError(
            404,
            f"The model '{asked[:200]}' does not exist; this server serves '{services.model_name}'.",
            param="model",
            code="model_not_found",
        )


async def submit(engine: VLMEngine, submission: Submission, request_id: str, deadline: Deadline) -> OutputStream:
    """Prepares and submits; what a request can be refused for is raised here, before an answer begins."""
    return await submit_prompt(engine, lambda: prepare(engine, submission), submission, request_id, deadline)


async def prepare(engine: VLMEngine, submission: Submission) -> PreparedPrompt:
    """The messages as the model's prompt."""
    fields = submission.fields
    return await engine.prepare(
        submission.shape.messages(submission.messages),
        tools=submission.shape.template_tools,
        chat_template_kwargs=fields.chat_template_kwargs,
        mm_processor_kwargs=fields.processor_options,
        priority_class=fields.priority_class,
        add_generation_prompt=fields.add_generation_prompt is not False and not fields.continue_final_message,
        continue_final_message=bool(fields.continue_final_message),
        truncate_prompt_tokens=kept_tokens(engine, fields, submission.params),
    )


def kept_tokens(engine: VLMEngine, fields: SamplingFields, params: SamplingParams) -> int | None:
    """How many of the prompt's last tokens to keep, None for all; -1 asks for what the context has room for."""
    if fields.truncate_prompt_tokens != -1:
        return fields.truncate_prompt_tokens
    room = engine.max_model_len - (params.max_tokens or 1)
    return room if room > 0 else None  # without room, submitting refuses with the numbers


async def submit_prompt(
    engine: VLMEngine,
    prepare: Callable[[], Awaitable[PreparedPrompt]],
    submission: Submission,
    request_id: str,
    deadline: Deadline,
) -> OutputStream:
    """Submits what ``prepare`` makes; the queue had room when the request was let in (:mod:`api.limits`)."""
    fields = submission.fields
    try:
        async with asyncio.timeout_at(deadline.at):
            prompt = await prepare()
            tail = engine.tokenizer.decode(prompt.token_ids[-PROMPT_TAIL:])
            stream = await engine.submit(
                prompt,
                submission.shape.bind(submission.params, tail),
                request_id=request_id,
                priority_class=fields.priority_class,
                priority=fields.priority or 0,
                cache_salt=fields.cache_salt,
            )
            deadline.slot.submitted()
            return stream
    except EngineError as error:
        renames = {**submission.renames, "structured_outputs": submission.shape.source}
        raise from_engine(error, renames) from error
    except TimeoutError:
        raise deadline.passed() from None


async def pieces(stream: OutputStream, deadline: Deadline) -> AsyncGenerator[RequestOutput, None]:
    """The stream's good pieces; a failure, an abort or the deadline raises ApiError. Aborts the request when left."""
    try:
        while True:
            try:
                async with asyncio.timeout_at(deadline.at):
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise deadline.passed() from None
            if piece.finish_reason is FinishReason.ERROR:
                raise ApiError(500, f"The request failed: {piece.error}", code="request_failed")
            if piece.finish_reason is FinishReason.ABORT:
                raise ApiError(503, "The request was aborted: the server is shutting down.", code="aborted")
            yield piece
    finally:
        await stream.aclose()


@dataclass(slots=True)
class Output:
    """One of a request's outputs, gathered from its pieces."""

    text: str = ""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.STOP
    stop_reason: str | int | None = None
    num_tokens: int = 0
    num_reasoning_tokens: int = 0


@dataclass(slots=True)
class Gathered:
    """All outputs of a request, by index, and the prompt's counts and log-probabilities."""

    outputs: list[Output]
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)

    @classmethod
    def empty(cls, n: int, num_prompt_tokens: int = 0) -> Gathered:
        return cls([Output() for _ in range(n)], num_prompt_tokens)

    def without_output(self) -> Gathered:
        """The prompt's part alone; every output is empty and ended at its bound."""
        outputs = [Output(finish_reason=FinishReason.LENGTH) for _ in self.outputs]
        return replace(self, outputs=outputs)

    @property
    def num_output_tokens(self) -> int:
        return sum(output.num_tokens for output in self.outputs)

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(output.num_reasoning_tokens for output in self.outputs)

    def add(self, piece: RequestOutput) -> None:
        output = self.outputs[piece.index]
        output.text += piece.text
        output.logprobs.extend(piece.logprobs)
        output.num_tokens = piece.num_output_tokens
        output.num_reasoning_tokens = piece.num_reasoning_tokens
        self.prompt_logprobs += piece.prompt_logprobs
        self.num_prompt_tokens = piece.num_prompt_tokens
        self.num_cached_tokens = piece.num_cached_tokens
        if piece.finish_reason is not None:
            output.finish_reason = piece.finish_reason
            output.stop_reason = piece.stop_reason


async def gather(stream: OutputStream, n: int, deadline: Deadline) -> Gathered:
    """Everything, for an answer in one piece."""
    gathered = Gathered.empty(n)
    async with aclosing(pieces(stream, deadline)) as source:
        async for piece in source:
            gathered.add(piece)
    return gathered
