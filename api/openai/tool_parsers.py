"""Tool calls out of a model's text, as it streams in: three ways of writing them.

Parsers work character by character, so that the same text gives the same calls however it was cut into pieces. What
turns out not to be a call of an offered tool is text.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

LONGEST_PYTHONIC = 64 * 1024
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Text:
    """Words for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Words of a thinking model before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool begins; ``index`` counts them."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete."""

    index: int


Event = Text | Reasoning | CallBegin | CallArguments | CallEnd


class ToolParser(Protocol):
    """Text in pieces -> events. Neighbouring texts are to be read together (:func:`merged`)."""

    def add(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events, neighbours of one kind put together."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            out[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            out[-1] = CallArguments(event.index, last.text + event.text)
        else:
            out.append(event)
    return out


class _CallScanner:
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
        if self._depth == 1 and char in _SPACE:
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


class HermesParser:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` anywhere in the text: Hermes 2 Pro, Qwen 2 to 3.

    A list of such objects within the tags is understood as well (SmolLM2). White space around the tags is left out.
    """

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._count = 0
        self._held = ""  # white space and what may be the beginning of a tag
        self._block: str | None = None  # since the tag opened, until an object begins
        self._scanner: _CallScanner | None = None
        self._after: str | None = None  # since an object ended, until the tag closed

    def add(self, text: str) -> list[Event]:
        events: list[Event] = []
        for char in text:
            events += self._step(char)
        return merged(events)

    def finish(self) -> list[Event]:
        if self._scanner is not None:
            scanner, self._scanner = self._scanner, None
            return scanner.cut() if scanner.begun else [Text(f"{self._block or ''}{scanner.raw}")]
        if self._block is not None:
            return [Text(self._block)]
        if self._after is not None:
            return []
        held, self._held = self._held, ""
        return [Text(held)] if held.strip() or not self._count else []

    def _step(self, char: str) -> list[Event]:
        if self._scanner is not None:
            return self._in_call(char)
        if self._after is not None:
            return self._after_call(char)
        if self._block is not None:
            return self._in_block(char)
        return self._in_text(char)

    def _in_text(self, char: str) -> list[Event]:
        self._held += char
        tag = self._held.lstrip(_SPACE)
        if tag == self.OPEN:
            self._held, self._block = "", self._held
            return []
        if self.OPEN.startswith(tag):
            return []
        # Not a tag after all; the new character may begin another, or the white space before one.
        keep = 1 if char in _SPACE or char == self.OPEN[0] else 0
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return [Text(out)]

    def _in_block(self, char: str) -> list[Event]:
        if char == "{":
            self._scanner = _CallScanner(self._names, self._count)
            return self._scanner.add(char)
        if char in _SPACE or char == "[":
            self._block = f"{self._block}{char}"
            return []
        text, self._block = self._block or "", None
        return [Text(text), *self._in_text(char)]

    def _in_call(self, char: str) -> list[Event]:
        scanner = self._scanner
        if scanner is None:
            return []
        events = scanner.add(char)
        if scanner.failed:
            self._scanner = None
            text, self._block = f"{self._block or ''}{scanner.raw}", None
            return [Text(text)]
        if scanner.done:
            self._scanner, self._block, self._after = None, None, ""
            self._count += 1
        return events

    def _after_call(self, char: str) -> list[Event]:
        rest = self._after or ""
        if not rest and char == "{":  # the next of a list
            self._after, self._block = None, ""
            return self._in_block(char)
        if not rest and char in f"{_SPACE},]":
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


class JsonParser:
    """The whole answer is ``{"name": ..., "parameters": {...}}``, several by semicolons: Llama 3."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._count = 0
        self._held = ""
        self._scanner: _CallScanner | None = None
        self._text = False

    def add(self, text: str) -> list[Event]:
        events: list[Event] = []
        for char in text:
            events += self._step(char)
        return merged(events)

    def finish(self) -> list[Event]:
        if self._scanner is not None:
            scanner, self._scanner = self._scanner, None
            return scanner.cut() if scanner.begun else [Text(self._held + scanner.raw)]
        held, self._held = self._held, ""
        return [Text(held)] if held and not self._count else []

    def _step(self, char: str) -> list[Event]:
        if self._text:
            return [Text(char)]
        if self._scanner is None:
            if char == "{":
                self._scanner = _CallScanner(self._names, self._count)
                return self._scanner.add(char)
            if char in _SPACE or (char in ";," and self._count and not self._held.strip()):
                self._held += char
                return []
            self._text = True
            held, self._held = self._held, ""
            return [Text(held + char)]
        events = self._scanner.add(char)
        if self._scanner.failed:
            self._text = True
            text, self._scanner, self._held = self._held + self._scanner.raw, None, ""
            return [Text(text)]
        if self._scanner.done:
            self._scanner, self._held = None, ""
            self._count += 1
        return events


class PythonicParser:
    """The answer begins with ``[f(a=1), g(b="x")]``: Llama 3.2 and 4 in their pythonic way.

    Calls come when the list is complete.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._text = False
        self._count = 0

    def add(self, text: str) -> list[Event]:
        events: list[Event] = []
        for char in text:
            events += self._step(char)
        return merged(events)

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        return [Text(held)] if held and not (self._count and not held.strip()) else []

    def _step(self, char: str) -> list[Event]:
        if self._text:
            if self._count and not self._held and char in _SPACE:
                return []
            self._held = ""
            return [Text(char)]
        self._held += char
        if self._depth == 0:
            if char == "[":
                self._depth = 1
            elif char not in _SPACE:
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
