"""``POST /v1/chat/completions``: the request as it comes in, and what the engine is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from api.errors import ApiError, invalid
from api.openai.fields import (
    DETAIL,
    NO_TOOLS,
    PROMPT_LOGPROBS,
    VLLM_EXTRAS,
    IgnoredFields,
    Neutral,
    SamplingFields,
    StreamOptions,
    StrictModel,
    check_prompt_logprobs,
    check_stream_options,
    content_kind,
    part_kind,
)
from api.openai.images import image_source
from api.openai.structured import ChatFormat, StructuredFields
from api.openai.tools import ChatToolFields, ToolCallIn, rendered_call
from vlm_engine.prompt import ImageDetail, ImagePart, Message, TextPart

UNSUPPORTED: Neutral = {
    **NO_TOOLS,
    **{name: neutral for name, neutral in VLLM_EXTRAS.items() if name != "prompt_logprobs"},
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


class ChatTextPart(StrictModel):
    type: Literal["text"]
    text: str


class ImageUrl(StrictModel):
    url: str
    detail: ImageDetail | None = Field(None, description=DETAIL)


class ChatImagePart(StrictModel):
    type: Literal["image_url"]
    image_url: Annotated[
        ImageUrl,
        BeforeValidator(lambda value: {"url": value} if isinstance(value, str) else value),
    ]
    uuid: str | None = Field(None, description="vLLM's cache key; accepted, pictures are known by content here.")


class RefusalPart(StrictModel):
    type: Literal["refusal"]
    refusal: str


ChatPart = Annotated[
    Annotated[ChatTextPart, Tag("~text")]
    | Annotated[ChatImagePart, Tag("~image_url")]
    | Annotated[RefusalPart, Tag("~refusal")],
    Discriminator(
        part_kind,
        custom_error_type="content_part",
        custom_error_message="Content parts are objects with type 'text' or 'image_url'.",
    ),
]
ChatContent = Annotated[
    Annotated[str, Tag("~text")] | Annotated[tuple[ChatPart, ...], Tag("~parts")], Discriminator(content_kind)
]


class ChatMessage(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: ChatContent | None = None
    name: str | None = Field(None, description="Given to the chat template.")
    tool_call_id: str | None = Field(None, description="Given to the chat template.")
    refusal: str | None = Field(None, description="What an assistant said instead of content.")
    tool_calls: Annotated[tuple[ToolCallIn, ...], Field(max_length=128)] | None = None
    function_call: Any = None
    audio: Any = None
    annotations: Any = Field(None, description="Sent back by clients that resend an answer; without effect.")
    reasoning_content: str | None = Field(None, description="Given to the chat template, which may leave it out.")
    reasoning: str | None = Field(None, description="Another name for reasoning_content.")


class ChatRequest(ChatToolFields, StructuredFields, SamplingFields, IgnoredFields):
    """A chat. ``model`` may be left out: there is one."""

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1, max_length=10_000)]
    model: str | None = None
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    prompt_logprobs: int | None = Field(None, ge=0, le=20, description=PROMPT_LOGPROBS)
    response_format: ChatFormat | None = None
    include_reasoning: bool | None = Field(None, description="false leaves the reasoning out of the answer (vLLM).")

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk: only when asked."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk carries the counts so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def wanted_logprobs(self) -> int | None:
        """Alternatives per token, None without log-probabilities. Raises a 400 for half a wish."""
        if not self.logprobs:
            if self.top_logprobs:
                raise invalid("top_logprobs needs logprobs: true.", param="top_logprobs")
            return None
        return self.top_logprobs or 0

    @property
    def longest(self) -> int | None:
        """The bound on new tokens, by whichever name it came; None = the rest of the context."""
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise invalid(
                f"max_tokens is {old} and max_completion_tokens is {new}; give one of them.", param="max_tokens"
            )
        return old if new is None else new

    def check(self) -> None:
        """Raises a 400 for fields that contradict each other."""
        check_stream_options(self.stream_options, self.stream)
        check_prompt_logprobs(self.prompt_logprobs, self.stream)


def engine_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages in the engine's form, pictures decoded from base64. Raises a 400 naming the field."""
    return [_engine_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _engine_message(message: ChatMessage, path: str) -> Message:
    for name in ("function_call", "audio"):
        if getattr(message, name):
            raise _unsupported(f"{path}.{name}", name)
    content = message.content if message.content is not None else message.refusal
    if content is None and not message.tool_calls:
        raise invalid(f"{path}.content is missing.", param=f"{path}.content", code="missing_required_parameter")
    # "developer" is OpenAI's newer word for "system"; chat templates know only the older.
    out: Message = {"role": "system" if message.role == "developer" else message.role, "content": ""}
    if isinstance(content, str):
        out["content"] = content
    elif content is not None:
        out["content"] = [_engine_part(part, f"{path}.content[{index}]") for index, part in enumerate(content)]
    if message.name is not None:
        out["name"] = message.name
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        calls = message.tool_calls
        out["tool_calls"] = [rendered_call(call.id, call.function.name, call.function.arguments) for call in calls]
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        out["reasoning_content"] = reasoning
    return out


def _engine_part(part: ChatTextPart | ChatImagePart | RefusalPart, path: str) -> TextPart | ImagePart:
    if isinstance(part, ChatTextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, RefusalPart):
        return {"type": "text", "text": part.refusal}
    image = image_source(part.image_url.url, f"{path}.image_url.url")
    return {"type": "image", "image": image, "detail": part.image_url.detail or "auto"}


def _unsupported(path: str, name: str) -> ApiError:
    return invalid(f"{path}: '{name}' is not supported by this server yet.", param=path, code="unsupported_parameter")
