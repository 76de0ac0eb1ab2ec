"""What an answer may consist of - reasoning, words, tool calls, a structure - and how it is read out of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from api.errors import invalid
from api.openai.dialects import Dialect
from api.openai.tool_grammars import calls_or_json, forced_calls, text_or_calls
from api.openai.tool_parsers import CallArguments, CallBegin, Event, Reasoning, Text, ToolParser, merged
from api.openai.tools import ToolUse, in_words
from vlm_engine.prompt import Message
from vlm_engine.sampling_params import SamplingParams
from vlm_engine.structured import StructuredOutput
from vlm_engine.thinking import Thinking, ThinkingSplitter

PROMPT_TAIL = 32
"""So many of a prompt's last tokens tell whether the template has begun or ended the reasoning."""


@dataclass(slots=True)
class AnswerShape:
    """One request's: known in part when it is read, whole when its prompt is (:meth:`bind`).

    Attributes:
        wanted: the structure asked for, and the field that asks.
        include_reasoning: False leaves reasoning out of the answer.
        thinking: the reasoning that may come, once the prompt is known.
    """

    dialect: Dialect = field(default_factory=Dialect)
    use: ToolUse = field(default_factory=ToolUse)
    wanted: tuple[StructuredOutput, str] | None = None
    include_reasoning: bool = True
    thinking: Thinking | None = None

    def check(self) -> None:
        """Raises a 400 for wishes that exclude each other."""
        if self.wanted is None or not self.use.active:
            return
        if self.use.forced:
            raise invalid(f"{self.wanted[1]} asks for an answer, tool_choice for calls; give one.", param="tool_choice")
        if self.wanted[0].kind != "json_schema":
            raise invalid(
                f"With tools only a JSON answer can be asked for, not {self.wanted[1]}.", param=self.wanted[1]
            )

    @property
    def grammar(self) -> StructuredOutput | None:
        """What the engine must hold the answer to. Raises a 400 when it can't be written."""
        use, form = self.use, self.dialect.tool_format
        if not use.active:
            return self.wanted[0] if self.wanted else None
        if use.forced:
            return forced_calls(use.tools, "llama3_json" if form == "pythonic" else form, parallel=use.parallel)
        if self.wanted is not None:
            if form == "pythonic":
                raise invalid(f"This model can't be given tools and {self.wanted[1]} at once.", param=self.wanted[1])
            return calls_or_json(use.tools, form, self.wanted[0], parallel=use.parallel)
        if any(tool.strict for tool in use.tools) or not use.parallel:
            if form == "pythonic":
                raise invalid(
                    "This model's way of calling can't be held to a schema; use tool_choice 'required'.", param="tools"
                )
            return text_or_calls(use.tools, form, parallel=use.parallel)
        return None

    @property
    def source(self) -> str:
        """The field that a refused grammar is about."""
        return self.wanted[1] if self.wanted is not None else "tools"

    @property
    def template_tools(self) -> list[dict[str, Any]] | None:
        """What the chat template is given."""
        return [tool.rendered for tool in self.use.tools] if self.use.active and self.dialect.knows_tools else None

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What the chat template is given."""
        if self.dialect.knows_tools:
            return messages
        return in_words(messages, self.use.tools if self.use.active else ())

    def bind(self, params: SamplingParams, prompt_tail: str) -> SamplingParams:
        """Takes note of how the prompt ends; gives the parameters with grammar and reasoning."""
        self.thinking = self.dialect.thinking_after(prompt_tail)
        return replace(params, structured=self.grammar, thinking=self.thinking)

    def reader(self) -> AnswerReader:
        """A new one, for one output."""
        tools = None
        if self.use.active:
            tools = self.dialect.parser((tool.name for tool in self.use.tools), forced=self.use.forced)
        return AnswerReader(self.thinking, tools, self.include_reasoning)

    def read(self, text: str) -> Answer:
        """A whole output's parts."""
        reader = self.reader()
        return Answer.of([*reader.add(text), *reader.finish()])

    def finish(self, reason: str, calls: int) -> str:
        """OpenAI's word for why an answer ended. For a named tool it is "stop", as in the OpenAI API."""
        return "tool_calls" if reason == "stop" and calls and self.use.mode != "named" else reason


class AnswerReader:
    """Text in pieces -> events; the same text gives the same events, neighbours merged, however it was cut."""

    def __init__(self, thinking: Thinking | None, tools: ToolParser | None, include_reasoning: bool) -> None:
        self._thinking = thinking
        self._splitter = ThinkingSplitter(thinking) if thinking is not None else None
        self._tools = tools
        self._include = include_reasoning
        self._opened = thinking is not None and thinking.open
        self._reasoned = self._opened  # whether there is any reasoning
        self._space = ""  # at the reasoning's end so far
        self._said = False

    def add(self, text: str) -> list[Event]:
        """The events that are certain now."""
        if self._splitter is None:
            return self._answer(text)
        return self._both(*self._splitter.add(text))

    def finish(self) -> list[Event]:
        """What was held back."""
        events = self._both(*self._splitter.finish()) if self._splitter is not None else []
        return [*events, *(self._tools.finish() if self._tools is not None else ())]

    def _both(self, reasoning: str, answer: str) -> list[Event]:
        return merged([*self._reason(reasoning), *self._answer(answer)])

    def _reason(self, text: str) -> list[Event]:
        """Without the markers, and without white space at either end."""
        if not text or self._thinking is None:
            return []
        if not self._opened:
            text = text.lstrip().removeprefix(self._thinking.start)
            self._opened = self._reasoned = True
        text = self._space + text.removesuffix(self._thinking.end)
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if not self._said:
            kept = kept.lstrip()
        self._said = self._said or bool(kept)
        if not self._said:
            self._space = ""
        return [Reasoning(kept)] if kept and self._include else []

    def _answer(self, text: str) -> list[Event]:
        if self._reasoned and text:
            text = text.lstrip("\n")
            self._reasoned = not text
        if not text:
            return []
        return self._tools.add(text) if self._tools is not None else [Text(text)]


@dataclass(slots=True)
class Call:
    """A tool call, its arguments as far as they are there."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")


@dataclass(slots=True)
class Answer:
    """An output's parts, gathered from events."""

    reasoning: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Sequence[Event]) -> Answer:
        answer = cls()
        for event in events:
            answer.add(event)
        return answer

    def add(self, event: Event) -> None:
        if isinstance(event, Text):
            self.text += event.text
        elif isinstance(event, Reasoning):
            self.reasoning += event.text
        elif isinstance(event, CallBegin):
            self.calls.append(Call(event.name))
        elif isinstance(event, CallArguments):
            self.calls[event.index].arguments += event.text
