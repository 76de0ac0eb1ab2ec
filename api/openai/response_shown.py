"""What a response repeats of its request: tools, their choice, and the form of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai.types.responses import FunctionTool, ResponseTextConfig, ToolChoiceAllowed, ToolChoiceFunction

from api.openai.structured import FlatJsonSchemaFormat
from api.openai.tools import ResponsesAllowedChoice, ToolUse

if TYPE_CHECKING:
    from api.openai.responses_request import ResponsesRequest


def shown_tools(asked: ResponsesRequest) -> list[Any]:
    """The offered tools."""
    return [
        FunctionTool(
            type="function",
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
        for tool in asked.tools or ()
    ]


def shown_choice(asked: ResponsesRequest, use: ToolUse) -> Any:
    """How they are to be used."""
    if isinstance(asked.tool_choice, ResponsesAllowedChoice):
        return ToolChoiceAllowed.model_validate(asked.tool_choice.model_dump())
    return ToolChoiceFunction(type="function", name=use.tools[0].name) if use.mode == "named" else use.mode


def shown_text(asked: ResponsesRequest) -> dict[str, Any]:
    """The field ``text``, when the request has it."""
    if asked.text is None or asked.text.format is None:
        return {}
    form = asked.text.format
    shown = form.model_dump(by_alias=True, exclude_none=True)
    if isinstance(form, FlatJsonSchemaFormat):
        shown["schema"] = form.schema_  # with its nulls
    return {"text": ResponseTextConfig.model_validate({"format": shown})}
