"""Who puts a crop into words: the engine in this process, or any OpenAI-compatible server."""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk, ChatCompletionContentPartParam, ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from pipeline.reasons import Reason

if TYPE_CHECKING:
    from vlm_engine import Message, OutputStream, VLMEngine

log = logging.getLogger(__name__)

_NOT_TAKEN = (400, 422)
"""Statuses with which servers refuse a field that they don't know or can't do."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one description; ``cached_tokens`` of the prompt were found in a prefix cache, ``image_tokens`` are the
    pictures', None where the backend doesn't say."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    image_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DescriptionPiece:
    """New words. The last piece has the finish reason ("stop" or "length") and the usage.

    ``reasoning``: what a server gave beside the answer; some put the answer itself there.
    """

    text: str
    finish_reason: str | None = None
    usage: Usage = Usage()
    reasoning: str = ""


class BackendError(Exception):
    """No description. ``reason`` is ENGINE_DOWN or ENGINE_BUSY when another attempt may work, whatever the crop, and
    ENGINE_ERROR when this crop failed. The text is for the log and is never shown as a description.

    Args:
        reason: one of the three.
        message: what happened.
        retry_after: seconds that the engine asks for.
        too_many_pictures: the crop can be described at once with its best picture alone.
    """

    def __init__(
        self, reason: Reason, message: str, retry_after: float | None = None, *, too_many_pictures: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
        self.too_many_pictures = too_many_pictures


@dataclass(frozen=True, slots=True)
class DescriptionRequest:
    """What is asked of a model. Greedy. Instructions first, then pictures, then the question, so that crops share the
    longest prefix.

    Attributes:
        pictures: JPEGs, in their order.
        best: which of them would do alone.
        schema: JSON schema of the answer; None: plain words.
        max_image_tokens: bounds what each picture takes, but for what the model needs at least.
    """

    pictures: tuple[bytes, ...]
    system: str
    question: str
    max_tokens: int
    schema: Mapping[str, Any] | None = None
    max_image_tokens: int | None = None
    best: int = 0


class DescriptionBackend(Protocol):
    """Streams the answer to a question about pictures of a person."""

    @property
    def model(self) -> str:
        """The model's name, stored with each description."""
        ...

    @property
    def takes_several_pictures(self) -> bool:
        """Whether a request may have more than one picture, as far as is known now."""
        ...

    def describe(self, request: DescriptionRequest) -> AsyncGenerator[DescriptionPiece, None]:
        """Closing the generator early aborts the request. Raises :class:`BackendError`."""
        ...


class InProcessBackend:
    """The engine of this process, behind the people who chat with it.

    Where it can't write under a grammar (its library is missing, or doesn't know the model's tokenizer), one warning
    says so and models are trusted to do as they are told.

    Args:
        engine: in any state; crops wait while it loads.
        processor_options: for the model's processor, such as ``do_image_splitting``.
    """

    def __init__(self, engine: VLMEngine, processor_options: Mapping[str, Any] | None = None) -> None:
        self._engine = engine
        self._processor_options = dict(processor_options or {})
        self._takes_schemas = True

    @property
    def model(self) -> str:
        return self._engine.model_name

    @property
    def takes_several_pictures(self) -> bool:
        return self._engine.takes_several_images

    async def describe(self, request: DescriptionRequest) -> AsyncGenerator[DescriptionPiece, None]:
        # Imported here: with another backend this process never loads torch.
        from vlm_engine import FinishReason

        with self._as_backend_errors(len(request.pictures)):
            stream, image_tokens = await self._submit(request)
        async with stream:
            async for output in stream:
                if output.finish_reason is FinishReason.ABORT:
                    raise BackendError(Reason.ENGINE_DOWN, "the engine ended the request")
                if output.finish_reason is FinishReason.ERROR:
                    raise BackendError(self._blame(), output.error or "the request failed")
                usage = Usage(
                    output.num_prompt_tokens, output.num_cached_tokens, output.num_output_tokens, image_tokens
                )
                finish = output.finish_reason.value if output.finish_reason is not None else None
                yield DescriptionPiece(output.text, finish, usage)

    async def _submit(self, request: DescriptionRequest) -> tuple[OutputStream, int]:
        """The request's stream, and how many tokens its pictures take."""
        from vlm_engine import InvalidRequestError, PriorityClass, SamplingParams, StructuredOutput

        parts: list[Any] = [{"type": "image", "image": jpeg} for jpeg in request.pictures]
        messages: list[Message] = [{"role": "system", "content": request.system}] if request.system else []
        messages.append({"role": "user", "content": [*parts, {"type": "text", "text": request.question}]})
        bound = request.max_image_tokens
        prompt = await self._engine.prepare(
            messages,
            mm_processor_kwargs=self._processor_options,
            priority_class=PriorityClass.BACKGROUND,
            max_image_tokens=None if bound is None else max(bound, self._engine.least_image_tokens),
        )
        structured = None
        if request.schema is not None and self._takes_schemas:
            structured = StructuredOutput("json_schema", json.dumps(request.schema), one_line=True)

        async def submit() -> OutputStream:
            return await self._engine.submit(
                prompt,
                SamplingParams(temperature=0.0, max_tokens=request.max_tokens, structured=structured),
                request_id=f"crop-{uuid.uuid4().hex}",
                priority_class=PriorityClass.BACKGROUND,
            )

        try:
            stream = await submit()
        except InvalidRequestError as error:
            if structured is None or error.code != "unsupported_parameter":
                raise
            log.warning("%s: answers are read as they come, and some may have no attributes", error)
            self._takes_schemas, structured = False, None
            stream = await submit()
        return stream, sum(image.num_tokens for image in prompt.images)

    @contextmanager
    def _as_backend_errors(self, pictures: int) -> Iterator[None]:
        from vlm_engine import EngineDeadError, EngineError, InvalidRequestError, OverloadedError

        try:
            yield
        except OverloadedError as error:
            raise BackendError(Reason.ENGINE_BUSY, str(error), error.retry_after) from error
        except EngineDeadError as error:
            raise BackendError(Reason.ENGINE_DOWN, str(error)) from error
        except InvalidRequestError as error:
            # Most likely the context is too short for several; if not, the best picture alone will say so.
            raise BackendError(Reason.ENGINE_ERROR, str(error), too_many_pictures=pictures > 1) from error
        except EngineError as error:
            raise BackendError(self._blame(), str(error)) from error

    def _blame(self) -> Reason:
        """A request that failed because the engine died is not the crop's fault."""
        from vlm_engine import EngineState

        return Reason.ENGINE_ERROR if self._engine.state is EngineState.READY else Reason.ENGINE_DOWN


class OpenAIBackend:
    """Any OpenAI-compatible server (vLLM, SGLang, llama.cpp, another watchword).

    A server that refuses a JSON schema, or several pictures, and then takes the same crop without, is told of by one
    warning and not asked for it again; the answer is read all the same, as well as can be.

    The protocol has no word for a bound on a picture's tokens: ``max_image_tokens`` has no effect.

    Args:
        base_url: ends in ``/v1``.
        api_key: None for servers that want none.
        model: as the server calls it.
        timeout_s: longest silence of the server.
    """

    def __init__(self, base_url: str, api_key: str | None, model: str, timeout_s: float = 60.0) -> None:
        self._model = model
        # No retries in the client: the describer knows the crop's deadline, the client doesn't.
        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key=api_key or "none", max_retries=0, timeout=openai.Timeout(timeout_s, connect=5.0)
        )
        self._takes_schemas = True
        self._takes_several = True

    @property
    def model(self) -> str:
        return self._model

    @property
    def takes_several_pictures(self) -> bool:
        return self._takes_several

    async def describe(self, request: DescriptionRequest) -> AsyncGenerator[DescriptionPiece, None]:
        finish: str | None = None
        usage, chunks, choices = Usage(), 0, 0
        with _openai_as_backend_errors():
            async with await self._open(request) as stream:
                async for chunk in stream:
                    chunks += 1
                    if chunk.usage is not None:
                        usage = _usage(chunk.usage)
                    for choice in chunk.choices[:1]:
                        choices += 1
                        finish = choice.finish_reason or finish
                        thought = _reasoning(choice.delta)
                        if choice.delta.content or thought:
                            yield DescriptionPiece(choice.delta.content or "", reasoning=thought)
        if chunks and not choices:
            raise BackendError(Reason.ENGINE_ERROR, "the server's answer has no choices")
        if finish is None:
            raise BackendError(Reason.ENGINE_DOWN, "the server closed the stream before the answer was complete")
        yield DescriptionPiece("", finish, usage)

    async def _open(self, request: DescriptionRequest) -> openai.AsyncStream[ChatCompletionChunk]:
        """The stream of an answer. A server that refuses the request is asked again with less.

        Only what it takes in the end says what it refused: else one broken picture would cost every later crop its
        schema.
        """
        refusal: openai.APIStatusError | None = None
        for schema, pictures in self._ways(request):
            try:
                stream = await self._ask(request, schema, pictures)
            except openai.APIStatusError as error:
                if error.status_code not in _NOT_TAKEN:
                    raise
                refusal = refusal or error
                continue
            if refusal is not None:
                self._learn(request, schema, pictures, refusal)
            if len(pictures) < len(request.pictures):
                await stream.close()
                # What is asked, and kept as having been asked, speaks of several pictures.
                raise BackendError(Reason.ENGINE_ERROR, "the server takes one picture", too_many_pictures=True)
            return stream
        raise refusal or RuntimeError("a request has no way to be asked")

    def _ways(self, request: DescriptionRequest) -> list[tuple[Mapping[str, Any] | None, tuple[bytes, ...]]]:
        """(schema, pictures) from all that is wanted down to a plain question about one picture."""
        schemas = [request.schema] if self._takes_schemas else []
        schemas += [] if schemas == [None] else [None]
        pictures = [request.pictures] if self._takes_several or len(request.pictures) == 1 else []
        pictures += [] if len(request.pictures) == 1 else [(request.pictures[request.best],)]
        return [(schema, shown) for shown in pictures for schema in schemas]

    def _learn(
        self,
        request: DescriptionRequest,
        schema: Mapping[str, Any] | None,
        pictures: tuple[bytes, ...],
        refusal: openai.APIStatusError,
    ) -> None:
        said = f"{refusal.status_code}: {refusal.message[:200]}"
        if request.schema is not None and schema is None:
            self._takes_schemas = False
            log.warning(
                "%s refuses JSON schemas (response_format): answers are read as they come, and some may have no "
                "attributes. It answered %s",
                self._model,
                said,
            )
        if len(pictures) < len(request.pictures):
            self._takes_several = False
            log.warning(
                "%s refuses prompts with %d pictures: it gets the best one alone. It answered %s",
                self._model,
                len(request.pictures),
                said,
            )

    async def _ask(
        self, request: DescriptionRequest, schema: Mapping[str, Any] | None, pictures: tuple[bytes, ...]
    ) -> openai.AsyncStream[ChatCompletionChunk]:
        form: Any = openai.omit
        if schema is not None:
            named = {"name": "description", "schema": dict(schema), "strict": True}
            form = {"type": "json_schema", "json_schema": named}
        return await self._client.chat.completions.create(
            model=self._model,
            messages=_openai_messages(pictures, request.system, request.question),
            max_tokens=request.max_tokens,
            temperature=0.0,
            response_format=form,
            stream=True,
            stream_options={"include_usage": True},
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _openai_messages(pictures: Sequence[bytes], system: str, question: str) -> list[ChatCompletionMessageParam]:
    urls = [f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" for jpeg in pictures]
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": system}] if system else []
    shown: list[ChatCompletionContentPartParam] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages.append({"role": "user", "content": [*shown, {"type": "text", "text": question}]})
    return messages


def _reasoning(delta: ChoiceDelta) -> str:
    """Reasoning by the names that servers give it (vLLM, SGLang, DeepSeek; OpenRouter, Ollama)."""
    extra = delta.model_extra or {}
    thought = extra.get("reasoning_content") or extra.get("reasoning")
    return thought if isinstance(thought, str) else ""


def _usage(usage: CompletionUsage) -> Usage:
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else None
    return Usage(usage.prompt_tokens, cached or 0, usage.completion_tokens)


@contextmanager
def _openai_as_backend_errors() -> Iterator[None]:
    try:
        yield
    except openai.APIStatusError as error:
        raise BackendError(_status_reason(error.status_code), _status_text(error), _retry_after(error)) from error
    except openai.APIConnectionError as error:
        raise BackendError(Reason.ENGINE_DOWN, f"the server can't be reached ({type(error).__name__})") from error
    except openai.APIError as error:
        # An error that the server sent inside the stream.
        raise BackendError(Reason.ENGINE_ERROR, f"the server failed ({type(error).__name__})") from error


def _status_reason(status: int) -> Reason:
    """What a status says of the server (then any crop may be tried again) or of this crop."""
    if status == 429:
        return Reason.ENGINE_BUSY
    if status in (401, 403, 404, 408, 502, 503, 504):
        # A wrong key, name or address is nobody's crop's fault either, and can be put right meanwhile.
        return Reason.ENGINE_DOWN
    return Reason.ENGINE_ERROR


def _status_text(error: openai.APIStatusError) -> str:
    return f"the server answered {error.status_code}" + (f" ({error.code})" if error.code else "")


def _retry_after(error: openai.APIStatusError) -> float | None:
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds <= 3600 else None
