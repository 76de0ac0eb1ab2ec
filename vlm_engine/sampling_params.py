"""What a request asks of sampling and stopping. Names and meanings are those of the OpenAI API and of vLLM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from vlm_engine.errors import InvalidRequestError
from vlm_engine.structured import StructuredOutput
from vlm_engine.thinking import Thinking

MAX_LOGPROBS = 20
LEAST_TEMPERATURE = 1e-5
"""Less is greedy, as in vLLM: logits divided by it would leave the range of float32."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping of one request.

    Attributes:
        max_tokens: most tokens to generate; None = the rest of the context.
        temperature: 0, and what is less than 1e-5, is greedy.
        top_p, top_k, min_p: the usual truncations; ``top_k`` 0 or -1, ``top_p`` 1.0 and ``min_p`` 0.0 switch them off.
        repetition_penalty: multiplicative, over prompt and output (CTRL paper, arXiv 1909.05858); 1.0 is off.
        presence_penalty, frequency_penalty: additive, over the output only (OpenAI API).
        logit_bias: token id -> added logit, -100 to 100.
        seed: own random generator of this request; batch mates never change what it draws.
        stop: strings that end the output and are not emitted (unless ``include_stop_str_in_output``).
        stop_token_ids: ids that end the output beside the model's own end tokens.
        min_tokens: end tokens are masked until so many tokens are out.
        ignore_eos: the model's own end tokens don't end the output.
        logprobs: None, or how many alternatives to report per token (0 = just the chosen one), at most 20.
        prompt_logprobs: the same for the prompt's own tokens, each after those before it.
        n: how many outputs; they share the prompt's KV pages.
        skip_special_tokens: leave special tokens out of the text.
        structured: what the output must look like. It ends where nothing can follow; ``min_tokens`` and ``ignore_eos``
            hold an end back only as long as something else may follow.
        thinking: reasoning that may come first; stop strings and ``structured`` are about what comes after it.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    skip_special_tokens: bool = True
    structured: StructuredOutput | None = None
    thinking: Thinking | None = None

    def __post_init__(self) -> None:
        """Raises :class:`InvalidRequestError` for a value outside its range, naming field, value and limit."""
        if self.max_tokens is not None:
            _at_least("max_tokens", self.max_tokens, 1)
        _within("temperature", self.temperature, 0.0, 2.0)
        _within("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _at_least("top_k", self.top_k, -1)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _at_least("min_tokens", self.min_tokens, 0)
        _within("n", self.n, 1, 128)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _within("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}", param="min_tokens"
            )
        for bias in self.logit_bias.values():
            _within("logit_bias", bias, -100.0, 100.0)
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop contains an empty string", param="stop")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken each time."""
        return self.temperature < LEAST_TEMPERATURE


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        raise InvalidRequestError(
            f"{name} is {value}, allowed is {'more than' if open_low else 'from'} {low} to {high}", param=name
        )


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise InvalidRequestError(f"{name} is {value}, allowed is {low} or more", param=name)
