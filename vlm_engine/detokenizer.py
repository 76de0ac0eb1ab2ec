"""Text from tokens, piece by piece: never half a character, never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlm_engine.thinking import Thinking, ThinkingSplitter

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Piece:
    """New text, and the stop string that ended the output, if one did."""

    text: str
    stop: str | None = None


class Detokenizer:
    """One output sequence's text.

    Text is held back only while its tail is an unfinished character or the beginning of a stop string.

    Args:
        tokenizer: the checkpoint's tokenizer.
        stops: stop strings.
        include_stop: whether a stop string is emitted.
        skip_special: leave special tokens out of the text.
        thinking: stop strings are looked for after this only.

    Attributes:
        num_reasoning: how many of the tokens are reasoning, markers included.
    """

    def __init__(
        self,
        tokenizer: Any,
        stops: Sequence[str],
        include_stop: bool,
        skip_special: bool,
        thinking: Thinking | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._prefix = 0  # decoding starts here ...
        self._read = 0  # ... and the text up to here is out already
        self._held = ""
        self._thinking = ThinkingSplitter(thinking) if thinking is not None else None
        self.num_reasoning = 0

    def add(self, token: int) -> Piece:
        """Takes the next token and gives the text that is certain now."""
        self._ids.append(token)
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        if len(after) <= len(before) or after.endswith(_REPLACEMENT):
            # Unfinished character, or no text: the window stays, so that the next token completes it.
            return self._release("", final=False)
        new = after[len(before) :]
        # Decoding starts with the tokens of the last piece: decoders need to see what stands before.
        self._prefix, self._read = self._read, len(self._ids)
        return self._release(new, final=False)

    def finish(self) -> Piece:
        """Whatever is still held back, once no more tokens come (an unfinished character as U+FFFD)."""
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        self._read = len(self._ids)
        return self._release(after[len(before) :], final=True)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=self._skip_special, clean_up_tokenization_spaces=False
        )
        return text

    def _release(self, new: str, *, final: bool) -> Piece:
        reasoning = ""
        if self._thinking is not None:
            before = self._thinking.inside
            reasoning, new = self._thinking.add(new)
            if self._thinking.inside or (reasoning and before is not False):
                self.num_reasoning = len(self._ids)
            if final:
                rest, answer = self._thinking.finish()
                reasoning, new = reasoning + rest, new + answer
        text = self._held + new
        stop, place = self._first_stop(text)
        if stop is not None:
            self._held = ""
            return Piece(reasoning + (text[: place + len(stop)] if self._include_stop else text[:place]), stop)
        keep = 0 if final else self._stop_prefix(text)
        self._held = text[len(text) - keep :]
        return Piece(reasoning + text[: len(text) - keep])

    def _first_stop(self, text: str) -> tuple[str | None, int]:
        """The stop string that is complete first; where two are, the one that begins first."""
        found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in self._stops if stop in text]
        if not found:
            return None, 0
        _, place, stop = min(found)
        return stop, place

    def _stop_prefix(self, text: str) -> int:
        """Length of the longest tail of the text that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
