"""Llama 3's way of calling tools."""

from __future__ import annotations

from collections.abc import Iterable

from api.openai.tool_parsers.base import JsonCallParser
from api.openai.tool_parsers.call_scanner import SPACE
from api.openai.tool_parsers.events import Event, Text


class JsonParser(JsonCallParser):
    """The whole answer is ``{"name": ..., "parameters": {...}}``, several by semicolons."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._text = False  # it is no call, to the end

    def _outside(self, char: str) -> list[Event]:
        if self._text:
            return [Text(char)]
        if char == "{":
            return self._begin(char)
        if char in SPACE or (char in ";," and self._count and not self._before.strip()):
            self._before += char
            return []
        self._text = True
        text, self._before = self._before + char, ""
        return [Text(text)]

    def _rest(self) -> list[Event]:
        held, self._before = self._before, ""
        return [Text(held)] if held and not self._count else []

    def _no_call(self) -> None:
        self._text = True
