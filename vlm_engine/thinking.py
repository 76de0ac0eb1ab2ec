"""Reasoning that thinking models write before their answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thinking:
    """The block of reasoning that may begin an output. Stop strings and grammars hold for what comes after it.

    Attributes:
        start, end: the markers around it.
        open: the prompt has written ``start`` already.
    """

    start: str = "<think>"
    end: str = "</think>"
    open: bool = False


class ThinkingSplitter:
    """Cuts an output's text, as it comes in pieces, into reasoning (markers included) and answer.

    Nothing of the answer is ever given as reasoning or the other way round, however the text was cut into pieces.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self._inside: bool | None = True if thinking.open else None  # None: not known yet
        self._held = ""  # not known yet: all of it; inside: what could be the beginning of the end marker

    @property
    def inside(self) -> bool | None:
        """Whether the text so far ends within reasoning; None: not known yet."""
        return self._inside

    def add(self, text: str) -> tuple[str, str]:
        """New text -> (reasoning, answer) that are certain now."""
        if self._inside is False:
            return "", text
        text = self._held + text
        self._held = ""
        if self._inside is None:
            begun = text.lstrip()
            if begun.startswith(self._thinking.start):
                self._inside = True
            elif self._thinking.start.startswith(begun):
                self._held = text
                return "", ""
            else:
                self._inside = False
                return "", text
        return self._within(text)

    def finish(self) -> tuple[str, str]:
        """What is still held back when no more text comes."""
        held, self._held = self._held, ""
        return (held, "") if self._inside else ("", held)

    def _within(self, text: str) -> tuple[str, str]:
        end = self._thinking.end
        place = text.find(end)
        if place >= 0:
            self._inside = False
            return text[: place + len(end)], text[place + len(end) :]
        keep = next((n for n in range(min(len(end) - 1, len(text)), 0, -1) if text.endswith(end[:n])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""
