"""What the engine emits, a piece a step and sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class FinishReason(StrEnum):
    """Why an output ended; ``stop`` and ``length`` are the OpenAI API's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probability (natural logarithm) under the distribution before truncation.

    ``rank``: 1 for the most likely token; None where it was not asked for.
    """

    token_id: int
    token: str
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one output position: the chosen token and the most likely ones."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """New output of one sequence of a request.

    Attributes:
        request_id: the request.
        index: which of its ``n`` outputs.
        text: new text since the last piece; never half a character, never part of a stop string.
        token_ids: new token ids since the last piece (may be there while the text is still held back).
        logprobs: one entry a new token when asked for, else empty.
        finish_reason: None until the last piece.
        stop_reason: the stop string or stop token id that ended it, None for the model's own end token.
        num_prompt_tokens, num_cached_tokens, num_output_tokens: the counts so far; cached = found in the prefix cache.
        num_reasoning_tokens: how many of the output's tokens are reasoning, markers included.
        prompt_logprobs: with the first piece of output 0 when asked for: of the prompt's second token to its last. The
            first token follows nothing.
        error: what went wrong when ``finish_reason`` is ``error``.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None
    num_reasoning_tokens: int = 0
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()

    def without_output(self) -> RequestOutput:
        """The piece with what it says of the prompt alone; an end is one at the bound."""
        ended = None if self.finish_reason is None else FinishReason.LENGTH
        return replace(
            self,
            text="",
            token_ids=(),
            logprobs=(),
            finish_reason=ended,
            stop_reason=None,
            num_output_tokens=0,
            num_reasoning_tokens=0,
        )
