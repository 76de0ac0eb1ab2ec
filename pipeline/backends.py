"""Who puts a crop into words: the engine in this process, or any OpenAI-compatible server."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

from pipeline.reasons import Reason

if TYPE_CHECKING:
    from vlm_engine import Message, OutputStream, VLMEngine


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one description; ``cached_tokens`` of the prompt were found in a prefix cache, ``image_tokens`` are the
    picture's, None where the backend doesn't say."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    image_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DescriptionPiece:
    """New words. The last piece has the finish reason ("stop" or "length") and the usage."""

    text: str
    finish_reason: str | None = None
    usage: Usage = Usage()


class BackendError(Exception):
    """No description. ``reason`` is ENGINE_DOWN or ENGINE_BUSY when another attempt may work, whatever the crop, and
    ENGINE_ERROR when this crop failed. The text is for the log and is never shown as a description.

    Args:
        reason: one of the three.
        message: what happened.
        retry_after: seconds that the engine asks for.
    """

    def __init__(self, reason: Reason, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class DescriptionBackend(Protocol):
    """Streams the answer to a question about a picture."""

    @property
    def model(self) -> str:
        """The model's name, stored with each description."""
        ...

    def describe(
        self, jpeg: bytes, system: str, question: str, max_tokens: int, max_image_tokens: int | None = None
    ) -> AsyncGenerator[DescriptionPiece, None]:
        """Greedy. Instructions first, then the picture, then the question, so that crops share the longest prefix.

        ``max_image_tokens`` bounds what the picture takes, but for what the model needs at least. Closing the generator
        early aborts the request. Raises :class:`BackendError`.
        """
        ...


class InProcessBackend:
    """The engine of this process, behind the people who chat with it.

    Args:
        engine: in any state; crops wait while it loads.
        processor_options: for the model's processor, such as ``do_image_splitting``.
    """

    def __init__(self, engine: VLMEngine, processor_options: Mapping[str, Any] | None = None) -> None:
        self._engine = engine
        self._processor_options = dict(processor_options or {})

    @property
    def model(self) -> str:
        return self._engine.model_name

    async def describe(
        self, jpeg: bytes, system: str, question: str, max_tokens: int, max_image_tokens: int | None = None
    ) -> AsyncGenerator[DescriptionPiece, None]:
        # Imported here: with another backend this process never loads torch.
        from vlm_engine import FinishReason

        with self._as_backend_errors():
            stream, image_tokens = await self._submit(jpeg, system, question, max_tokens, max_image_tokens)
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

    async def _submit(
        self, jpeg: bytes, system: str, question: str, max_tokens: int, max_image_tokens: int | None
    ) -> tuple[OutputStream, int]:
        """The request's stream, and how many tokens the picture takes."""
        from vlm_engine import PriorityClass, SamplingParams

        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages.append(
            {"role": "user", "content": [{"type": "image", "image": jpeg}, {"type": "text", "text": question}]}
        )
        if max_image_tokens is not None:
            max_image_tokens = max(max_image_tokens, self._engine.least_image_tokens)
        prompt = await self._engine.prepare(
            messages,
            mm_processor_kwargs=self._processor_options,
            priority_class=PriorityClass.BACKGROUND,
            max_image_tokens=max_image_tokens,
        )
        stream = await self._engine.submit(
            prompt,
            SamplingParams(temperature=0.0, max_tokens=max_tokens),
            request_id=f"crop-{uuid.uuid4().hex}",
            priority_class=PriorityClass.BACKGROUND,
        )
        return stream, sum(image.num_tokens for image in prompt.images)

    @contextmanager
    def _as_backend_errors(self) -> Iterator[None]:
        from vlm_engine import EngineDeadError, EngineError, OverloadedError

        try:
            yield
        except OverloadedError as error:
            raise BackendError(Reason.ENGINE_BUSY, str(error), error.retry_after) from error
        except EngineDeadError as error:
            raise BackendError(Reason.ENGINE_DOWN, str(error)) from error
        except EngineError as error:
            raise BackendError(self._blame(), str(error)) from error

    def _blame(self) -> Reason:
        """A request that failed because the engine died is not the crop's fault."""
        from vlm_engine import EngineState

        return Reason.ENGINE_ERROR if self._engine.state is EngineState.READY else Reason.ENGINE_DOWN


class OpenAIBackend:
    """Any OpenAI-compatible server (vLLM, SGLang, llama.cpp, another watchword).

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

    @property
    def model(self) -> str:
        return self._model

    async def describe(
        self, jpeg: bytes, system: str, question: str, max_tokens: int, max_image_tokens: int | None = None
    ) -> AsyncGenerator[DescriptionPiece, None]:
        finish: str | None = None
        usage = Usage()
        with _openai_as_backend_errors():
            stream = await self._client.chat.completions.create(
                model=self._model,
                messages=_openai_messages(jpeg, system, question),
                max_tokens=max_tokens,
                temperature=0.0,
                stream=True,
                stream_options={"include_usage": True},
            )
            async with stream:
                async for chunk in stream:
                    if chunk.usage is not None:
                        usage = _usage(chunk.usage)
                    for choice in chunk.choices[:1]:
                        finish = choice.finish_reason or finish
                        if choice.delta.content:
                            yield DescriptionPiece(choice.delta.content)
        if finish is None:
            raise BackendError(Reason.ENGINE_DOWN, "the server closed the stream before the answer was complete")
        yield DescriptionPiece("", finish, usage)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _openai_messages(jpeg: bytes, system: str, question: str) -> list[ChatCompletionMessageParam]:
    url = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": system}] if system else []
    messages.append(
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}],
        }
    )
    return messages


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
