"""Hermes 2 Pro's way of calling tools, which Qwen 2 to 3 share."""

from __future__ import annotations

from collections.abc import Iterable

from api.openai.tool_parsers.base import JsonCallParser
from api.openai.tool_parsers.call_scanner import SPACE
from api.openai.tool_parsers.events import Event, Text


class HermesParser(JsonCallParser):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` anywhere in the text.

    A list of such objects within the tags is understood as well (SmolLM2). White space around the tags is left out.
    """

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._held = ""  # white space and what may be the beginning of a tag
        self._opened = False  # a tag has opened, and no object has begun; ``_before`` is what came since
        self._after: str | None = None  # since an object ended, until the tag closed

    def _outside(self, char: str) -> list[Event]:
        if self._after is not None:
            return self._after_call(char)
        return self._in_block(char) if self._opened else self._in_text(char)

    def _rest(self) -> list[Event]:
        if self._opened:
            return [Text(self._before)]
        if self._after is not None:
            return []
        held, self._held = self._held, ""
        return [Text(held)] if held.strip() or not self._count else []

    def _in_text(self, char: str) -> list[Event]:
        self._held += char
        tag = self._held.lstrip(SPACE)
        if tag == self.OPEN:
            self._held, self._before, self._opened = "", self._held, True
            return []
        if self.OPEN.startswith(tag):
            return []
        # Not a tag after all; the new character may begin another, or the white space before one.
        keep = 1 if char in SPACE or char == self.OPEN[0] else 0
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return [Text(out)]

    def _in_block(self, char: str) -> list[Event]:
        if char == "{":
            return self._begin(char)
        if char in SPACE or char == "[":
            self._before += char
            return []
        text, self._before, self._opened = self._before, "", False
        return [Text(text), *self._in_text(char)]

    def _no_call(self) -> None:
        self._opened = False

    def _call_done(self) -> None:
        self._opened, self._after = False, ""

    def _after_call(self, char: str) -> list[Event]:
        rest = self._after or ""
        if not rest and char == "{":  # the next of a list
            self._after, self._opened = None, True
            return self._begin(char)
        if not rest and char in f"{SPACE},]":
            return []
        rest += char
        if rest == self.CLOSE:
            self._after = None
            return []
        if self.CLOSE.startswith(rest):
            self._after = rest
            return []
        # A closing tag is missing: go on as text.
        self._after = None
        events: list[Event] = []
        for each in rest:
            events += self._step(each)
        return events
