"""What the request models share: sampling fields, and the line between supported, ignored and refused fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator

from api.errors import from_engine, invalid
from vlm_engine.errors import InvalidRequestError
from vlm_engine.prompt import PriorityClass
from vlm_engine.sampling_params import SamplingParams

INT64 = 2**63
MAX_STOPS = 16

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""How many there are the model says."""

Neutral = Mapping[str, tuple[Any, ...]]
"""Field -> the values that ask for nothing. Fields of the API that aren't supported yet, and may be sent with these."""

NO_TOOLS: Neutral = {
    "max_tool_calls": (),
    "moderation": (),
    "prompt_cache_options": ({},),
    "service_tier": ("auto", "default"),
}
"""Refused by chat completions and responses alike."""

VLLM_EXTRAS: Neutral = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "length_penalty": (1.0,),
    "media_io_kwargs": ({},),
    "prompt_logprobs": (),
    "request_id": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
"""Fields of vLLM that its clients know and that have no effect here yet."""


def refuse_unsupported(data: dict[str, Any], unsupported: Neutral) -> dict[str, Any]:
    """``data`` without the unsupported fields; raises a 400 naming one that asks for something."""
    kept = {}
    for name, value in data.items():
        if name not in unsupported:
            kept[name] = value
        elif value is not None and value not in unsupported[name]:
            raise invalid(f"'{name}' is not supported by this server yet.", param=name, code="unsupported_parameter")
    return kept


class StrictModel(BaseModel):
    """A request or a part of one: a field that we don't know is an error, never silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def content_kind(value: Any) -> str:
    """Tag of a message's content: a string or parts. (Tags begin with ``~`` so that error paths leave them out.)"""
    return "~text" if isinstance(value, str) else "~parts"


def part_kind(value: Any) -> str:
    """Tag of a content part: its own ``type``."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"~{kind}"


Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Stops = Annotated[
    tuple[Stop, ...],
    Field(max_length=MAX_STOPS),
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)],
    ),
]


ShortText = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[Annotated[str, StringConstraints(max_length=64)], ShortText], Field(max_length=16)]


class IgnoredFields(StrictModel):
    """Notes and hints that clients send routinely: whose end user it is, and which requests share a prefix.

    They ask for no other answer; prefixes are found by their content here.
    """

    user: ShortText | None = None
    metadata: Metadata | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: ShortText | None = None


class StreamOptions(StrictModel):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = Field(None, description="Chunks are never padded.")
    continuous_usage_stats: bool | None = Field(None, description="Counts in every chunk (vLLM); with include_usage.")


PROMPT_LOGPROBS = "Log-probabilities of the prompt's own tokens, with so many alternatives each (vLLM)."


def check_prompt_logprobs(wanted: int | None, stream: bool | None) -> None:
    """Raises a 400 for a stream, which has no place for them."""
    if wanted is not None and stream:
        raise invalid("prompt_logprobs can't be streamed; leave stream out.", param="prompt_logprobs")


def check_stream_options(options: StreamOptions | None, stream: bool | None) -> None:
    """Raises a 400 for options without a stream, or for half a wish."""
    if options is None:
        return
    if not stream:
        raise invalid("stream_options is only allowed with stream: true.", param="stream_options")
    if options.continuous_usage_stats and not options.include_usage:
        raise invalid(
            "continuous_usage_stats needs include_usage: true.", param="stream_options.continuous_usage_stats"
        )


DETAIL = (
    "low: one view of the whole picture, at most engine.low_detail_image_tokens tokens where the model can choose; "
    "high, original: as closely as the model can, in tiles where it has them; auto: as the server is configured. "
    "The server's bound on a picture's tokens (engine.max_image_tokens_*) holds for all of them."
)

MAX_OPTION_PIXELS = 16 * 1024 * 1024


class ProcessorOptions(StrictModel):
    """What a request may tell the model's picture processor; one that its family doesn't know is refused.

    These go before ``detail`` and the configured splitting. A picture that would take more tokens than the server
    allows is scaled down nevertheless; ``min_pixels`` that asks for more is refused.
    """

    do_image_splitting: bool | None = Field(None, description="SmolVLM, Idefics3: false makes one tile of a picture.")
    min_pixels: int | None = Field(None, ge=1, le=MAX_OPTION_PIXELS, description="Qwen: smaller pictures are enlarged.")
    max_pixels: int | None = Field(None, ge=1, le=MAX_OPTION_PIXELS, description="Qwen: larger ones are scaled down.")


class SamplingFields(StrictModel):
    """Sampling and stopping; names and meanings as in the OpenAI API and in vLLM. None takes the model's default."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=INT64, description="0 or -1: off.")
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: Stops | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: Annotated[tuple[TokenId, ...], Field(max_length=1024)] | None = None
    min_tokens: int | None = Field(None, ge=0, lt=INT64)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="Lower goes first (vLLM). Above 0: background, after all interactive requests, like a camera's.",
    )
    cache_salt: str | None = Field(None, max_length=256, description="Only the same salt shares cached prefixes.")
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        lt=INT64,
        description="Keep only so many of the prompt's last tokens; -1: as many as the context has room for.",
    )

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _some_tokens(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("0 tokens are no prompt; allowed are -1, or 1 and more")
        return value

    @property
    def processor_options(self) -> dict[str, Any]:
        """Those that were given."""
        return self.mm_processor_kwargs.model_dump(exclude_none=True) if self.mm_processor_kwargs else {}

    @property
    def priority_class(self) -> PriorityClass:
        """vLLM's meaning of ``priority`` (lower goes first) on our two classes."""
        return PriorityClass.BACKGROUND if (self.priority or 0) > 0 else PriorityClass.INTERACTIVE


def sampling_params(
    fields: SamplingFields,
    defaults: SamplingParams,
    *,
    n: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    renames: Mapping[str, str],
) -> SamplingParams:
    """``defaults`` (the checkpoint's own) with what the request says. Raises a 400 for a value out of range."""
    given: dict[str, Any] = {
        name: value
        for name in SamplingFields.model_fields
        if name in SamplingParams.__dataclass_fields__ and (value := getattr(fields, name)) is not None
    }
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    try:
        return replace(defaults, n=n, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **given)
    except InvalidRequestError as error:
        raise from_engine(error, renames) from None
