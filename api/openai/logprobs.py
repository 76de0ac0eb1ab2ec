"""Log-probabilities in the OpenAI API's two forms."""

from __future__ import annotations

from collections.abc import Iterable

from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.responses import response_output_text, response_text_delta_event, response_text_done_event

from vlm_engine.outputs import PositionLogprobs

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


def completion_logprobs(positions: Iterable[PositionLogprobs], offset: int) -> tuple[Logprobs, int]:
    """For text completions: parallel lists. Alternatives hold the chosen token too, as the OpenAI API's do.

    Args:
        positions: the new tokens.
        offset: characters of this choice's tokens before them.

    Returns:
        The lists, and the offset after them.
    """
    tokens, chosen, tops, offsets = [], [], [], []
    for position in positions:
        tokens.append(position.chosen.token)
        chosen.append(_finite(position.chosen.logprob))
        # The likelier of two tokens that read alike is kept.
        top = {entry.token: _finite(entry.logprob) for entry in reversed(position.top)}
        top.setdefault(position.chosen.token, _finite(position.chosen.logprob))
        tops.append(top)
        offsets.append(offset)
        offset += len(position.chosen.token)
    return Logprobs(tokens=tokens, token_logprobs=chosen, top_logprobs=tops, text_offset=offsets), offset


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
