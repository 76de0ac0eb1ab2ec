"""The answer to a chat: one object, or chunks that share id and creation time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from uuid import uuid4

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails

from api.openai.answers import Answer, AnswerReader, AnswerShape
from api.openai.chat_calls import chat_delta, chat_message
from api.openai.logprobs import chat_logprobs, prompt_logprobs
from api.openai.submission import Gathered, Output
from api.openai.tool_parsers import merged
from api.streaming import sse
from vlm_engine.outputs import FinishReason, RequestOutput

Finish = Literal["stop", "length", "tool_calls"]

DONE = sse("[DONE]")


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Builds what goes out for one chat.

    Attributes:
        with_logprobs: the request asked for log-probabilities.
        with_usage: every chunk carries ``usage`` (null), and one more chunk at the end carries the counts.
        usage_in_chunks: every chunk carries the counts so far instead of null.
        prompt_logprobs: alternatives told of each of the prompt's tokens; None for no such list.
    """

    model: str
    with_logprobs: bool = False
    with_usage: bool = False
    usage_in_chunks: bool = False
    prompt_logprobs: int | None = None
    shape: AnswerShape = field(default_factory=AnswerShape)
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _readers: dict[int, tuple[AnswerReader, Answer]] = field(default_factory=dict)

    def whole(self, gathered: Gathered) -> ChatCompletion:
        extra: dict[str, Any] = {}
        if self.prompt_logprobs is not None:
            extra["prompt_logprobs"] = prompt_logprobs(gathered.prompt_logprobs, self.prompt_logprobs)
        return ChatCompletion(
            id=self.id,
            object="chat.completion",
            created=self.created,
            model=self.model,
            choices=[self._choice(index, output) for index, output in enumerate(gathered.outputs)],
            usage=usage_of(gathered),
            **extra,
        )

    def _choice(self, index: int, output: Output) -> Choice:
        logprobs = ChoiceLogprobs(content=chat_logprobs(output.logprobs), refusal=None) if self.with_logprobs else None
        answer = self.shape.read(output.text)
        return Choice(
            index=index,
            message=chat_message(answer),
            logprobs=logprobs,
            finish_reason=self._finish(output.finish_reason, answer),
            **_stop_reason(output.stop_reason),
        )

    def opening(self, gathered: Gathered) -> list[bytes]:
        """The chunks that name the role, one a choice, before any text."""
        delta = ChoiceDelta(role="assistant", content="")
        return [
            self._chunk(ChunkChoice(index=index, delta=delta, finish_reason=None), gathered)
            for index in range(len(gathered.outputs))
        ]

    def piece(self, piece: RequestOutput, gathered: Gathered) -> list[bytes]:
        """The chunks for one piece: what is new, if anything, and the choice's end, if it is. ``gathered`` holds it."""
        reader, answer = self._reader(piece.index)
        events = reader.add(piece.text)
        if piece.finish_reason is not None:
            events = merged([*events, *reader.finish()])
        deltas = [delta for event in events if (delta := chat_delta(event, answer)) is not None]
        logprobs = ChunkLogprobs(content=chat_logprobs(piece.logprobs), refusal=None) if self.with_logprobs else None
        if piece.logprobs and not deltas:
            deltas = [ChoiceDelta(content="")]
        chunks = []
        for delta in deltas:
            choice: dict[str, Any] = {"logprobs": logprobs}
            chunks.append(
                self._chunk(ChunkChoice(index=piece.index, delta=delta, finish_reason=None, **choice), gathered)
            )
            logprobs = None  # a token's are told once
        if piece.finish_reason is not None:
            finish = self._finish(piece.finish_reason, answer)
            end = ChunkChoice(
                index=piece.index, delta=ChoiceDelta(), finish_reason=finish, **_stop_reason(piece.stop_reason)
            )
            chunks.append(self._chunk(end, gathered))
        return chunks

    def closing(self, gathered: Gathered) -> list[bytes]:
        """The usage chunk, when asked for, and the end marker."""
        if not self.with_usage:
            return [DONE]
        return [self._encode([], usage_of(gathered)), DONE]

    def _reader(self, index: int) -> tuple[AnswerReader, Answer]:
        if index not in self._readers:
            self._readers[index] = (self.shape.reader(), Answer())
        return self._readers[index]

    def _finish(self, reason: FinishReason, answer: Answer) -> Finish:
        # Errors and aborts never get here: they end the request with an error.
        return cast(Finish, self.shape.finish(reason.value, len(answer.calls)))

    def _chunk(self, choice: ChunkChoice, gathered: Gathered) -> bytes:
        return self._encode([choice], usage_of(gathered) if self.usage_in_chunks else None)

    def _encode(self, choices: list[ChunkChoice], usage: CompletionUsage | None) -> bytes:
        chunk = ChatCompletionChunk(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.model,
            choices=choices,
            **({"usage": usage} if self.with_usage else {}),
        )
        return sse(chunk.model_dump_json(exclude_unset=True))


def _stop_reason(reason: str | int | None) -> dict[str, Any]:
    """vLLM's extra field: the stop string or token id that ended the output."""
    return {"stop_reason": reason}


def usage_of(gathered: Gathered) -> CompletionUsage:
    """The counts so far."""
    return CompletionUsage(
        prompt_tokens=gathered.num_prompt_tokens,
        completion_tokens=gathered.num_output_tokens,
        total_tokens=gathered.num_prompt_tokens + gathered.num_output_tokens,
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=gathered.num_reasoning_tokens),
        prompt_tokens_details=PromptTokensDetails(cached_tokens=gathered.num_cached_tokens),
    )
