"""Llama 3.2's and 4's pythonic way of calling tools."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Any

from api.openai.tool_parsers.base import ToolParser
from api.openai.tool_parsers.call_scanner import SPACE
from api.openai.tool_parsers.events import CallArguments, CallBegin, CallEnd, Event, Text

LONGEST_PYTHONIC = 64 * 1024


class PythonicParser(ToolParser):
    """The answer begins with ``[f(a=1), g(b="x")]``.

    Calls come when the list is complete.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._held = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._text = False

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        return [Text(held)] if held and not (self._count and not held.strip()) else []

    def _step(self, char: str) -> list[Event]:
        if self._text:
            if self._count and not self._held and char in SPACE:
                return []
            self._held = ""
            return [Text(char)]
        self._held += char
        if self._depth == 0:
            if char == "[":
                self._depth = 1
            elif char not in SPACE:
                return self._give_up()
            return []
        if self._quote:
            self._in_quotes(char)
        elif char in "\"'":
            self._quote = char
        elif char in "[({":
            self._depth += 1
        elif char in "])}":
            self._depth -= 1
        if self._depth == 0:
            return self._complete()
        return self._give_up() if len(self._held) > LONGEST_PYTHONIC else []

    def _in_quotes(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == self._quote:
            self._quote = ""

    def _give_up(self) -> list[Event]:
        held, self._held, self._text = self._held, "", True
        return [Text(held)]

    def _complete(self) -> list[Event]:
        try:
            calls = [self._call(node) for node in _list_elements(self._held)]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return self._give_up()
        self._held, self._text, self._count = "", True, len(calls)
        events: list[Event] = []
        for index, (name, arguments) in enumerate(calls):
            events += [CallBegin(index, name), CallArguments(index, json.dumps(arguments)), CallEnd(index)]
        return events

    def _call(self, node: ast.expr) -> tuple[str, dict[str, Any]]:
        if not isinstance(node, ast.Call) or node.args:
            raise ValueError("not a call with named arguments")
        name = ast.unparse(node.func)
        if name not in self._names:
            raise ValueError("not an offered tool")
        arguments = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise ValueError("not a named argument")
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
            json.dumps(arguments[keyword.arg])  # sets and the like are no JSON
        return name, arguments


def _list_elements(text: str) -> list[ast.expr]:
    tree = ast.parse(text.strip(), mode="eval").body
    if not isinstance(tree, ast.List) or not tree.elts:
        raise ValueError("not a list of calls")
    return tree.elts
