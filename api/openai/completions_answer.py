"""The answer to a text completion: one object, or chunks that share id and creation time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast
from uuid import uuid4

from openai.types import Completion, CompletionUsage
from openai.types.completion_choice import CompletionChoice, Logprobs

from api.openai.chat_answer import DONE, usage_of
from api.openai.logprobs import completion_logprobs, prompt_logprobs
from api.openai.submission import Gathered, Output
from api.streaming import sse
from vlm_engine.outputs import FinishReason, PositionLogprobs, RequestOutput


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that goes before its choices' texts; ``first`` is its first token."""

    text: str
    first: str


@dataclass(slots=True)
class CompletionAnswer:
    """Builds what goes out for one request. Choices are numbered through all prompts.

    Attributes:
        count: choices for each prompt.
        logprobs: alternatives told of each token; None when the request asked for no log-probabilities.
        with_usage: every chunk carries ``usage`` (null), and one more chunk at the end carries the counts.
        usage_in_chunks: every chunk carries the counts so far instead of null.
        prompt_logprobs: alternatives told of each of the prompts' tokens; None for no such lists.
        echoes: the prompts, to go before each choice's text; none when not asked for.
    """

    model: str
    count: int
    logprobs: int | None
    with_usage: bool
    usage_in_chunks: bool
    prompt_logprobs: int | None = None
    echoes: Sequence[Echo] = ()
    id: str = field(default_factory=lambda: f"cmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _offsets: dict[int, int] = field(default_factory=dict)
    _opened: set[int] = field(default_factory=set)

    def whole(self, prompts: Sequence[Gathered]) -> Completion:
        """All prompts' choices; where there are more candidates than choices, the likeliest by token."""
        choices = []
        for number, gathered in enumerate(prompts):
            outputs = gathered.outputs
            if len(outputs) > self.count:
                outputs = sorted(outputs, key=_mean_logprob, reverse=True)[: self.count]
            choices += [self._choice(number, place, output, gathered) for place, output in enumerate(outputs)]
        return Completion(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=_sum(prompts),
        )

    def _choice(self, prompt: int, place: int, output: Output, gathered: Gathered) -> CompletionChoice:
        index = prompt * self.count + place
        echo = self.echoes[prompt] if self.echoes else None
        choice = self._any_choice(
            index,
            (echo.text if echo else "") + output.text,
            [*(gathered.prompt_logprobs if echo else ()), *output.logprobs],
            output.finish_reason,
            output.stop_reason,
            echo.first if echo else None,
        )
        if self.prompt_logprobs is not None:
            lists: dict[str, Any] = {"prompt_logprobs": prompt_logprobs(gathered.prompt_logprobs, self.prompt_logprobs)}
            choice = choice.model_copy(update=lists)
        return choice

    def opening(self, prompts: Sequence[Gathered]) -> list[bytes]:
        """The echoed prompts, one chunk a choice; those with log-probabilities wait for the first piece."""
        if self.logprobs is not None:
            return []
        return [chunk for number in range(len(self.echoes)) for chunk in self._open(number, prompts)]

    def _open(self, number: int, prompts: Sequence[Gathered]) -> list[bytes]:
        if not self.echoes or number in self._opened:
            return []
        self._opened.add(number)
        echo, scores = self.echoes[number], prompts[number].prompt_logprobs
        usage = _sum(prompts) if self.usage_in_chunks else None
        indices = range(number * self.count, (number + 1) * self.count)
        choices = [self._any_choice(index, echo.text, scores, None, None, echo.first) for index in indices]
        return [self._encode([choice], usage) for choice in choices]

    def piece(self, prompt: int, piece: RequestOutput, prompts: Sequence[Gathered]) -> list[bytes]:
        """The chunks for one piece, if it holds anything. ``prompts`` hold it already."""
        opening = self._open(prompt, prompts)
        if not (piece.text or piece.finish_reason is not None or (self.logprobs is not None and piece.logprobs)):
            return opening
        index = prompt * self.count + piece.index
        choice = self._any_choice(index, piece.text, piece.logprobs, piece.finish_reason, piece.stop_reason)
        return [*opening, self._encode([choice], _sum(prompts) if self.usage_in_chunks else None)]

    def closing(self, prompts: Sequence[Gathered]) -> list[bytes]:
        """The usage chunk, when asked for, and the end marker."""
        return [self._encode([], _sum(prompts)), DONE] if self.with_usage else [DONE]

    def _any_choice(
        self,
        index: int,
        text: str,
        positions: Sequence[PositionLogprobs],
        reason: FinishReason | None,
        stop_reason: str | int | None,
        first: str | None = None,
    ) -> CompletionChoice:
        logprobs: Logprobs | None = None
        if self.logprobs is not None:
            told = [replace(position, top=position.top[: self.logprobs]) for position in positions]
            logprobs, self._offsets[index] = completion_logprobs(told, self._offsets.get(index, 0), first)
        # Not validated: the package's type knows no choice that has not ended, though streams consist of them.
        return CompletionChoice.model_construct(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=cast(Literal["stop", "length"], None if reason is None else reason.value),
            stop_reason=stop_reason,
        )

    def _encode(self, choices: list[CompletionChoice], usage: CompletionUsage | None) -> bytes:
        extra: dict[str, Any] = {"usage": usage} if self.with_usage else {}
        chunk = Completion.model_construct(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.model,
            choices=choices,
            **extra,
        )
        return sse(chunk.model_dump_json(exclude_unset=True, warnings=False))


def _mean_logprob(output: Output) -> float:
    chosen = [position.chosen.logprob for position in output.logprobs]
    return sum(chosen) / len(chosen) if chosen else float("-inf")


def _sum(prompts: Sequence[Gathered]) -> CompletionUsage:
    total = Gathered(
        [output for gathered in prompts for output in gathered.outputs],
        sum(gathered.num_prompt_tokens for gathered in prompts),
        sum(gathered.num_cached_tokens for gathered in prompts),
    )
    return usage_of(total)
