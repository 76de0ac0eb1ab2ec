"""Tools as clients offer them, in chats and in responses, and the calls and results that they send back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from api.errors import invalid
from api.openai.fields import StrictModel
from vlm_engine.prompt import Message

MAX_TOOLS = 128
HERMES_WORDS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
    'tags:\n<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
"""The system prompt of Hermes 2 Pro, which Qwen's templates write too; for templates that know no tools."""

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of its arguments.
        strict: True = arguments follow the schema whenever it is called; False = where calls are forced, keywords that
            can't be enforced are left out instead of refused.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool | None

    @property
    def schema(self) -> dict[str, Any]:
        """Of the arguments, which are always an object."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters} if "type" not in self.parameters else dict(self.parameters)

    @property
    def rendered(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema if self.parameters is None else dict(self.parameters)
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools there are and what is to be done with them.

    Attributes:
        tools: those that may be called.
        mode: "none": no calls; "auto": the model decides; "required": at least one call; "named": one of the one tool.
        parallel: several calls in one answer are allowed.
    """

    tools: tuple[Tool, ...] = ()
    mode: Mode = "none"
    parallel: bool = True

    @property
    def active(self) -> bool:
        """Whether calls can be in the answer."""
        return bool(self.tools) and self.mode != "none"

    @property
    def forced(self) -> bool:
        """Whether the answer must be calls."""
        return self.mode in ("required", "named")


# Requests -------------------------------------------------------------------------------------------------------------


class FunctionSpec(StrictModel):
    """A function, as chats hold it."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(StrictModel):
    type: Literal["function"]
    function: FunctionSpec


class ResponsesTool(StrictModel):
    """The same without the inner object, as responses have it."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionName(StrictModel):
    name: Name


class ChatNamedChoice(StrictModel):
    type: Literal["function"]
    function: FunctionName


class ResponsesNamedChoice(StrictModel):
    type: Literal["function"]
    name: Name


AllowedMode = Literal["auto", "required"]


class ChatAllowed(StrictModel):
    mode: AllowedMode
    tools: Annotated[tuple[ChatNamedChoice, ...], Field(min_length=1, max_length=MAX_TOOLS)]


class ChatAllowedChoice(StrictModel):
    """Only these of the tools, for this once."""

    type: Literal["allowed_tools"]
    allowed_tools: ChatAllowed


class ResponsesAllowedChoice(StrictModel):
    """The same without the inner objects, as responses have it."""

    type: Literal["allowed_tools"]
    mode: AllowedMode
    tools: Annotated[tuple[ResponsesNamedChoice, ...], Field(min_length=1, max_length=MAX_TOOLS)]


def _choice_kind(value: Any) -> str:
    if isinstance(value, str):
        return "~mode"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "~allowed" if kind == "allowed_tools" else "~named"


ChoiceMode = Literal["none", "auto", "required"]
ChatChoice = Annotated[
    Annotated[ChoiceMode, Tag("~mode")]
    | Annotated[ChatNamedChoice, Tag("~named")]
    | Annotated[ChatAllowedChoice, Tag("~allowed")],
    Discriminator(_choice_kind),
]
ResponsesChoice = Annotated[
    Annotated[ChoiceMode, Tag("~mode")]
    | Annotated[ResponsesNamedChoice, Tag("~named")]
    | Annotated[ResponsesAllowedChoice, Tag("~allowed")],
    Discriminator(_choice_kind),
]


class ChatToolFields(StrictModel):
    tools: Annotated[tuple[ChatTool, ...], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ChatChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def tool_use(self) -> ToolUse:
        """The tools and their choice. Raises a 400 for a choice that can't be."""
        tools = [_tool(tool.function) for tool in self.tools or ()]
        choice, parallel = self.tool_choice, self.parallel_tool_calls
        if isinstance(choice, ChatNamedChoice):
            return _named_use(tools, choice.function.name)
        if isinstance(choice, ChatAllowedChoice):
            allowed = choice.allowed_tools
            return _tool_use(_chosen(tools, [tool.function.name for tool in allowed.tools]), allowed.mode, parallel)
        return _tool_use(tools, choice, parallel)


class ResponsesToolFields(StrictModel):
    tools: Annotated[tuple[ResponsesTool, ...], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ResponsesChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def tool_use(self) -> ToolUse:
        """The tools and their choice. Raises a 400 for a choice that can't be."""
        tools = [_tool(tool) for tool in self.tools or ()]
        choice, parallel = self.tool_choice, self.parallel_tool_calls
        if isinstance(choice, ResponsesNamedChoice):
            return _named_use(tools, choice.name)
        if isinstance(choice, ResponsesAllowedChoice):
            return _tool_use(_chosen(tools, [tool.name for tool in choice.tools]), choice.mode, parallel)
        return _tool_use(tools, choice, parallel)


def _tool(spec: FunctionSpec | ResponsesTool) -> Tool:
    return Tool(spec.name, spec.description, spec.parameters, spec.strict)


def _tool_use(tools: Sequence[Tool], mode: ChoiceMode | None, parallel: bool | None) -> ToolUse:
    _check_names(tools)
    if not tools:
        if mode == "required":
            raise invalid("tool_choice is only allowed when tools are given.", param="tool_choice")
        return ToolUse()
    return ToolUse(tuple(tools), mode or "auto", parallel is not False)


def _named_use(tools: Sequence[Tool], name: str) -> ToolUse:
    return ToolUse(tuple(_chosen(tools, [name])), "named", False)


def _chosen(tools: Sequence[Tool], names: Sequence[str]) -> list[Tool]:
    """Those of the tools that ``tool_choice`` names, in the order in which they are offered."""
    _check_names(tools)
    if not tools:
        raise invalid("tool_choice is only allowed when tools are given.", param="tool_choice")
    unknown = set(names) - {tool.name for tool in tools}
    if unknown:
        raise invalid(f"tool_choice: no tool is called {min(unknown)!r}.", param="tool_choice")
    return [tool for tool in tools if tool.name in names]


def _check_names(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    doubles = {name for name in names if names.count(name) > 1}
    if doubles:
        raise invalid(f"tools: more than one is called {min(doubles)!r}.", param="tools")


# History --------------------------------------------------------------------------------------------------------------


class CalledFunction(StrictModel):
    name: Annotated[str, Field(max_length=128)]
    arguments: str


class ToolCallIn(StrictModel):
    """A call that the assistant made, sent back by the client."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Any = Field(None, description="Sent back by clients that put streams together; without effect.")


def rendered_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """As chat templates expect it: arguments as an object, or as they came where they are none."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = arguments
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": value}}


def in_words(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The same conversation for a template that knows no tools: Hermes' way of writing them, as plain text."""
    out: list[Message] = []
    for message in messages:
        if message["role"] == "assistant" and message.get("tool_calls"):
            out.append(_calls_in_words(message))
        elif message["role"] == "tool":
            response = [{"type": "text", "text": "<tool_response>\n"}, *_parts(message["content"])]
            out.append({"role": "user", "content": [*response, {"type": "text", "text": "\n</tool_response>"}]})
        else:
            out.append(message)
    if not tools:
        return out
    words = HERMES_WORDS.format(tools="\n".join(json.dumps(tool.rendered, ensure_ascii=False) for tool in tools))
    if out and out[0]["role"] == "system":
        first: list[Any] = [*_parts(out[0]["content"]), {"type": "text", "text": f"\n\n{words}"}]
        return [{**out[0], "content": first}, *out[1:]]
    return [{"role": "system", "content": words}, *out]


def _calls_in_words(message: Message) -> Message:
    calls = "\n".join(
        f"<tool_call>\n{json.dumps(_name_and_arguments(call['function']), ensure_ascii=False)}\n</tool_call>"
        for call in message["tool_calls"]
    )
    said = _parts(message["content"])
    return {"role": "assistant", "content": [*said, {"type": "text", "text": f"\n{calls}" if said else calls}]}


def _name_and_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": function["name"], "arguments": function["arguments"]}


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)
