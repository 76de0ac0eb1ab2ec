"""Log-probabilities in the OpenAI API's two forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.responses import response_output_text, response_text_delta_event, response_text_done_event

from vlm_engine.outputs import PositionLogprobs, TokenLogprob

LOWEST = -9999.0
"""OpenAI's stand-in for a probability of zero: JSON knows no infinity."""


def chat_logprobs(positions: Iterable[PositionLogprobs]) -> list[ChatCompletionTokenLogprob]:
    """For chat completions."""
    return [
        ChatCompletionTokenLogprob(
            token=position.chosen.token,
            bytes=_bytes(position.chosen.token),
            logprob=_finite(position.chosen.logprob),
            top_logprobs=[
                TopLogprob(token=top.token, bytes=_bytes(top.token), logprob=_finite(top.logprob))
                for top in position.top
            ],
        )
        for position in positions
    ]


def completion_logprobs(
    positions: Iterable[PositionLogprobs], offset: int, first: str | None = None
) -> tuple[Logprobs, int]:
    """For text completions: parallel lists. Alternatives hold the chosen token too, as the OpenAI API's do.

    Args:
        positions: the new tokens.
        offset: characters of this choice's tokens before them.
        first: a token before them that follows nothing and so has no log-probability: a prompt's first.

    Returns:
        The lists, and the offset after them.
    """
    tokens: list[str] = []
    chosen: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    if first is not None:
        tokens, chosen, tops, offsets = [first], [None], [None], [offset]
        offset += len(first)
    for position in positions:
        tokens.append(position.chosen.token)
        chosen.append(_finite(position.chosen.logprob))
        # The likelier of two tokens that read alike is kept.
        top = {entry.token: _finite(entry.logprob) for entry in reversed(position.top)}
        top.setdefault(position.chosen.token, _finite(position.chosen.logprob))
        tops.append(top)
        offsets.append(offset)
        offset += len(position.chosen.token)
    # Not validated: the package's type knows no token without a log-probability, though the API has one.
    lists: dict[str, Any] = {"token_logprobs": chosen, "top_logprobs": tops}
    return Logprobs.model_construct(tokens=tokens, text_offset=offsets, **lists), offset


def prompt_logprobs(positions: Iterable[PositionLogprobs], count: int) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's form: token id -> log-probability, rank and text, an entry a token; None for the first.

    Args:
        positions: of the prompt's second token to its last, with ``count`` alternatives or more.
        count: alternatives to tell; the prompt's own token comes in any case.
    """
    entries: list[dict[str, dict[str, Any]] | None] = [None]
    for position in positions:
        ranked = [(rank, top) for rank, top in enumerate(position.top[:count], 1)]
        entry = {str(top.token_id): _ranked(top, rank) for rank, top in ranked}
        chosen = position.chosen
        entries.append({str(chosen.token_id): _ranked(chosen, chosen.rank), **entry})
    return entries


def _ranked(token: TokenLogprob, rank: int | None) -> dict[str, Any]:
    return {"logprob": _finite(token.logprob), "rank": rank, "decoded_token": token.token}


def item_logprobs(positions: Iterable[PositionLogprobs]) -> list[response_output_text.Logprob]:
    """For the finished text of a response."""
    return [
        response_output_text.Logprob(
            token=position.chosen.token,
            bytes=_bytes(position.chosen.token),
            logprob=_finite(position.chosen.logprob),
            top_logprobs=[
                response_output_text.LogprobTopLogprob(
                    token=top.token, bytes=_bytes(top.token), logprob=_finite(top.logprob)
                )
                for top in position.top
            ],
        )
        for position in positions
    ]


def delta_logprobs(positions: Iterable[PositionLogprobs]) -> list[response_text_delta_event.Logprob]:
    """For ``response.output_text.delta``."""
    return [
        response_text_delta_event.Logprob(
            token=position.chosen.token,
            logprob=_finite(position.chosen.logprob),
            top_logprobs=[
                response_text_delta_event.LogprobTopLogprob(token=top.token, logprob=_finite(top.logprob))
                for top in position.top
            ],
        )
        for position in positions
    ]


def done_logprobs(positions: Iterable[PositionLogprobs]) -> list[response_text_done_event.Logprob]:
    """For ``response.output_text.done``."""
    return [
        response_text_done_event.Logprob(
            token=position.chosen.token,
            logprob=_finite(position.chosen.logprob),
            top_logprobs=[
                response_text_done_event.LogprobTopLogprob(token=top.token, logprob=_finite(top.logprob))
                for top in position.top
            ],
        )
        for position in positions
    ]


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _bytes(token: str) -> list[int]:
    return list(token.encode("utf-8", "replace"))
