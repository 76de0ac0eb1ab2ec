"""How a checkpoint writes tool calls and reasoning, read off its chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from api.openai.tool_parsers import HermesParser, JsonParser, PythonicParser, ToolParser
from vlm_engine.thinking import Thinking

ToolFormat = Literal["hermes", "llama3_json", "pythonic"]

_PARSERS: dict[ToolFormat, Callable[[Iterable[str]], ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": JsonParser,
    "pythonic": PythonicParser,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What is known of a checkpoint's way of writing.

    Attributes:
        tool_format: how it writes calls. Templates that know no tools get Hermes' way, with the words that explain it.
        knows_tools: the template writes the offered tools, calls and results itself.
        thinking: the markers of its reasoning; None for models that have none.
    """

    tool_format: ToolFormat = "hermes"
    knows_tools: bool = False
    thinking: Thinking | None = None

    def parser(self, names: Iterable[str], *, forced: bool) -> ToolParser:
        """A parser for one output. Forced calls of pythonic models are JSON: its grammar holds any schema."""
        if forced and self.tool_format == "pythonic":
            return JsonParser(names)
        return _PARSERS[self.tool_format](names)

    def thinking_after(self, prompt: str) -> Thinking | None:
        """The reasoning that may follow a prompt that ends so: none where the template has closed it already."""
        if self.thinking is None:
            return None
        end = prompt.rstrip()
        if end.endswith(self.thinking.end):
            return None
        return Thinking(self.thinking.start, self.thinking.end, open=end.endswith(self.thinking.start))


@lru_cache(maxsize=8)
def dialect_of(template: str | None) -> Dialect:
    """The dialect that a chat template speaks."""
    if template is None:
        return Dialect()
    thinking = Thinking() if "</think>" in template else None
    return Dialect(_tool_format(template), bool(re.search(r"\btools\b", template)), thinking)


def _tool_format(template: str) -> ToolFormat:
    signs: Sequence[tuple[str, ToolFormat]] = (
        ("<tool_call>", "hermes"),
        ("<|python_tag|>", "llama3_json"),
        ('"parameters": dictionary', "llama3_json"),
        ("func_name1(params_name1", "pythonic"),
    )
    return next((name for sign, name in signs if sign in template), "hermes")
