"""``POST /v1/responses``: the request as it comes in, and the engine's messages from its items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from api.errors import invalid
from api.openai.fields import (
    DETAIL,
    NO_TOOLS,
    VLLM_EXTRAS,
    IgnoredFields,
    Neutral,
    SamplingFields,
    StrictModel,
    content_kind,
    part_kind,
)
from api.openai.images import image_source
from api.openai.response_inputs import (
    FunctionCall,
    FunctionCallOutput,
    ReasoningInput,
    add_item,
    add_message,
    item_kind,
)
from api.openai.structured import StructuredFields, TextOptions
from api.openai.tools import ResponsesToolFields
from vlm_engine.prompt import ImageDetail, ImagePart, Message, TextPart

UNSUPPORTED: Neutral = {
    **NO_TOOLS,
    **VLLM_EXTRAS,
    "access_programs": (),
    "background_options": ({},),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "prompt": (),
    "reasoning": ({}, {"effort": None}, {"effort": "none"}),
    "truncation": ("disabled",),
}

LOGPROBS = "message.output_text.logprobs"


class InputText(StrictModel):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Any = None


class InputImage(StrictModel):
    type: Literal["input_image"]
    image_url: str | None = None
    file_id: None = None
    detail: ImageDetail | None = Field(None, description=DETAIL)
    prompt_cache_breakpoint: Any = None


class OutputText(StrictModel):
    """What the assistant said earlier, sent back by the client."""

    type: Literal["output_text"]
    text: str
    annotations: Any = None
    logprobs: Any = None


class Refusal(StrictModel):
    type: Literal["refusal"]
    refusal: str


ItemPart = Annotated[
    Annotated[InputText, Tag("~input_text")]
    | Annotated[InputImage, Tag("~input_image")]
    | Annotated[OutputText, Tag("~output_text")]
    | Annotated[Refusal, Tag("~refusal")],
    Discriminator(
        part_kind,
        custom_error_type="content_part",
        custom_error_message="Content parts are objects with type 'input_text', 'input_image' or 'output_text'.",
    ),
]
ItemContent = Annotated[
    Annotated[str, Tag("~text")] | Annotated[tuple[ItemPart, ...], Tag("~parts")], Discriminator(content_kind)
]


class InputMessage(StrictModel):
    """A message of the input."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: ItemContent
    id: Any = None
    status: Any = None
    phase: Any = None


InputItem = Annotated[
    Annotated[InputMessage, Tag("~message")]
    | Annotated[FunctionCall, Tag("~function_call")]
    | Annotated[FunctionCallOutput, Tag("~function_call_output")]
    | Annotated[ReasoningInput, Tag("~reasoning")],
    Discriminator(
        item_kind,
        custom_error_type="input_item",
        custom_error_message="Items are of type 'message', 'function_call', 'function_call_output' or 'reasoning'.",
    ),
]


def _as_items(value: Any) -> Any:
    return ({"role": "user", "content": value},) if isinstance(value, str) else value


class ResponsesStreamOptions(StrictModel):
    include_obfuscation: Literal[False] | None = Field(None, description="Events are never padded.")


class ResponsesRequest(ResponsesToolFields, StructuredFields, SamplingFields, IgnoredFields):
    """A response to make. ``model`` may be left out: there is one."""

    input: Annotated[
        tuple[InputItem, ...],
        Field(min_length=1, max_length=10_000),
        BeforeValidator(
            _as_items,
            json_schema_input_type=str | Annotated[list[InputItem], Field(min_length=1, max_length=10_000)],
        ),
    ]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextOptions | None = None
    include_reasoning: bool | None = Field(None, description="false leaves the reasoning out of the answer (vLLM).")
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    include: tuple[Literal["message.output_text.logprobs", "reasoning.encrypted_content"], ...] | None = Field(
        None, description="reasoning.encrypted_content is without effect: there is none."
    )
    top_logprobs: int | None = Field(None, ge=0, le=20)
    store: bool | None = Field(None, description="Keep it for later; true when not given, as far as there is room.")
    previous_response_id: str | None = Field(None, max_length=128, description="A stored response to go on from.")
    background: bool | None = Field(None, description="Answer at once, and let the response be retrieved later.")

    def check(self) -> None:
        """Raises a 400 for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed with stream: true.", param="stream_options")
        if self.background and self.store is False:
            raise invalid("background needs store: true; the response is retrieved later.", param="background")

    @property
    def wanted_logprobs(self) -> int | None:
        """Alternatives per token, None without log-probabilities."""
        if self.top_logprobs is None and LOGPROBS not in (self.include or ()):
            return None
        return self.top_logprobs or 0


def engine_messages(instructions: str | None, items: Sequence[InputItem], first: int = 0) -> list[Message]:
    """Instructions and items in the engine's form, pictures decoded from base64. Raises a 400 naming the field.

    Args:
        instructions: go first, as a system message.
        items: the conversation.
        first: which of them is the request's ``input[0]``; those before come from a stored response.
    """
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for index, item in enumerate(items):
        if not isinstance(item, InputMessage):
            add_item(messages, item)
            continue
        content: str | list[TextPart | ImagePart]
        if isinstance(item.content, str):
            content = item.content
        else:
            path = f"input[{index - first}].content"
            content = [_engine_part(part, f"{path}[{at}]") for at, part in enumerate(item.content)]
        # "developer" is OpenAI's newer word for "system"; chat templates know only the older.
        role = "system" if item.role == "developer" else item.role
        add_message(messages, {"role": role, "content": content})
    return messages


def _engine_part(part: InputText | InputImage | OutputText | Refusal, path: str) -> TextPart | ImagePart:
    if isinstance(part, InputImage):
        if part.image_url is None:
            raise invalid(f"{path}.image_url is missing.", param=f"{path}.image_url", code="missing_required_parameter")
        image = image_source(part.image_url, f"{path}.image_url")
        return {"type": "image", "image": image, "detail": part.detail or "auto"}
    return {"type": "text", "text": part.refusal if isinstance(part, Refusal) else part.text}
