"""What all parsers share: they take text character by character, and know the offered tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from api.openai.tool_parsers.call_scanner import CallScanner
from api.openai.tool_parsers.events import Event, Text, merged


class ToolParser(ABC):
    """Text in pieces -> events; the same text gives the same events, neighbours merged, however it was cut.

    Args:
        names: of the offered tools.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._count = 0  # calls so far

    def add(self, text: str) -> list[Event]:
        """The events that are certain now."""
        events: list[Event] = []
        for char in text:
            events += self._step(char)
        return merged(events)

    @abstractmethod
    def finish(self) -> list[Event]:
        """What was held back, once no more text comes."""

    @abstractmethod
    def _step(self, char: str) -> list[Event]: ...


class JsonCallParser(ToolParser):
    """Calls are JSON objects; what may stand around them is the subclass's matter."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._before = ""  # held back: stands before an object, and is text if that is no call
        self._scanner: CallScanner | None = None

    def finish(self) -> list[Event]:
        scanner, self._scanner = self._scanner, None
        if scanner is None:
            return self._rest()
        return scanner.cut() if scanner.begun else [Text(self._before + scanner.raw)]

    def _step(self, char: str) -> list[Event]:
        return self._outside(char) if self._scanner is None else self._inside(self._scanner, char)

    def _begin(self, char: str) -> list[Event]:
        """An object's opening brace."""
        self._scanner = CallScanner(self._names, self._count)
        return self._scanner.add(char)

    def _inside(self, scanner: CallScanner, char: str) -> list[Event]:
        events = scanner.add(char)
        if scanner.failed:
            text, self._scanner, self._before = self._before + scanner.raw, None, ""
            self._no_call()
            return [Text(text)]
        if scanner.done:
            self._scanner, self._before = None, ""
            self._count += 1
            self._call_done()
        return events

    @abstractmethod
    def _outside(self, char: str) -> list[Event]:
        """A character between the objects."""

    @abstractmethod
    def _rest(self) -> list[Event]:
        """What was held back outside of an object."""

    def _no_call(self) -> None:
        """An object has turned out to be text, and is given."""

    def _call_done(self) -> None:
        """A call has ended."""
