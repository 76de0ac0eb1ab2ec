"""What is found in a model's text: words, reasoning, and calls of tools as they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
