"""Items of a response's input beside messages: earlier calls of tools, their results, and reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from api.openai.fields import StrictModel, content_kind
from api.openai.tools import rendered_call
from vlm_engine.prompt import Message


class FunctionCall(StrictModel):
    """A call that the assistant made."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1, max_length=128)]
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: str
    id: str | None = None
    status: Any = None


class OutputPart(StrictModel):
    """A piece of a tool's result; pictures belong into user messages."""

    type: Literal["input_text"]
    text: str


class FunctionCallOutput(StrictModel):
    """What the call gave."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1, max_length=128)]
    output: Annotated[
        Annotated[str, Tag("~text")] | Annotated[tuple[OutputPart, ...], Tag("~parts")], Discriminator(content_kind)
    ]
    id: str | None = None
    status: Any = None

    @property
    def text(self) -> str:
        """The whole result."""
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


class ReasoningText(StrictModel):
    type: Literal["reasoning_text"]
    text: str


class ReasoningInput(StrictModel):
    """Reasoning of an earlier answer; chat templates may leave it out."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Any = None
    content: tuple[ReasoningText, ...] | None = None
    encrypted_content: None = None
    status: Any = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(part.text for part in self.content or ())


def item_kind(value: Any) -> str:
    """Tag of an input item: its own type, a message when it has none."""
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", "message")
    return f"~{kind}"


def add_item(messages: list[Message], item: FunctionCall | FunctionCallOutput | ReasoningInput) -> None:
    """Adds an item to the engine's messages: calls and reasoning belong to the assistant's message beside them."""
    if isinstance(item, FunctionCallOutput):
        messages.append({"role": "tool", "content": item.text, "tool_call_id": item.call_id})
        return
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if isinstance(item, ReasoningInput):
        if item.text:
            messages.append({"role": "assistant", "content": [], "reasoning_content": item.text})
        return
    if last is None:
        last = {"role": "assistant", "content": []}
        messages.append(last)
    calls: Sequence[Any] = last.get("tool_calls", ())
    last["tool_calls"] = [*calls, rendered_call(item.call_id, item.name, item.arguments)]


def add_message(messages: list[Message], message: Message) -> None:
    """Adds a message; the assistant's joins reasoning that stands alone so far."""
    last = messages[-1] if messages else None
    alone = last is not None and "reasoning_content" in last and not last["content"] and "tool_calls" not in last
    if last is not None and alone and message["role"] == "assistant":
        last["content"] = message["content"]
        return
    messages.append(message)
