"""One tool call that is written as a JSON object, read while it is being written."""

from __future__ import annotations

import json

from api.openai.tool_parsers.events import CallArguments, CallBegin, CallEnd, Event, Text

SPACE = " \t\r\n"


class CallScanner:
    """One JSON object ``{"name": ..., "arguments": {...}}`` ("parameters" is known too), a character at a time.

    Attributes:
        raw: everything taken so far.
        begun: the name is known, and one of the offered tools.
        done: the object has ended.
        failed: it is no call of an offered tool; ``raw`` is text then. Never once ``begun``.
    """

    def __init__(self, names: frozenset[str], index: int) -> None:
        self._names, self._index = names, index
        self.raw = ""
        self.done = self.failed = False
        self.begun = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._key: str | None = None  # of the value that we are in, or that comes next
        self._at_value = False  # a colon was seen: what comes is a value
        self._piece = ""  # the key or value being read
        self._arguments = ""  # read before the name was known
        self._has_arguments = False

    def add(self, char: str) -> list[Event]:
        self.raw += char
        if self._in_string:
            return self._in_text(char)
        if char == '"':
            self._in_string = True
            return self._value_char(char)
        if char in "{[":
            self._depth += 1
            return [] if self._depth == 1 else self._value_char(char)
        if char in "}]":
            return self._close(char)
        if self._depth == 1 and char == ":" and not self._at_value:
            return self._key_ends()
        if self._depth == 1 and char == ",":
            return self._value_ends()
        if self._depth == 1 and char in SPACE:
            return []
        return self._value_char(char)

    def _in_text(self, char: str) -> list[Event]:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
        return self._value_char(char)

    def _close(self, char: str) -> list[Event]:
        self._depth -= 1
        if self._depth > 0:
            return self._value_char(char)
        events = self._value_ends()
        if not self.begun:
            self.failed = True
            return events
        self.done = True
        if not self._has_arguments:
            events.append(CallArguments(self._index, "{}"))
        return [*events, CallEnd(self._index)]

    def _key_ends(self) -> list[Event]:
        try:
            key = json.loads(self._piece)
        except ValueError:
            key = None
        self.failed |= not isinstance(key, str) and not self.begun
        self._key, self._piece, self._at_value = key, "", True
        return []

    def _value_char(self, char: str) -> list[Event]:
        first = not self._piece
        self._piece += char
        if not (self._at_value and self._key in ("arguments", "parameters")) or self._has_arguments:
            return []
        if not self.begun:
            self.failed |= first and char != "{"
            self._arguments += char
            return []
        return [CallArguments(self._index, char)]

    def _value_ends(self) -> list[Event]:
        key, piece = self._key, self._piece
        self._key, self._piece, self._at_value = None, "", False
        if key in ("arguments", "parameters") and piece and self.begun:
            self._has_arguments = True
        elif key == "name" and not self.begun:
            return self._named(piece)
        return []

    def _named(self, piece: str) -> list[Event]:
        try:
            name = json.loads(piece)
        except ValueError:
            name = None
        if not isinstance(name, str) or name not in self._names:
            self.failed = True
            return []
        self.begun = True
        events: list[Event] = [CallBegin(self._index, name)]
        if self._arguments:
            self._has_arguments = True
            events.append(CallArguments(self._index, self._arguments))
        return events

    def cut(self) -> list[Event]:
        """No more text comes."""
        return [CallEnd(self._index)] if self.begun else [Text(self.raw)]
