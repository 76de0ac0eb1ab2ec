"""Features of encoded pictures, kept by content: the one place they live.

An entry is *held* by requests that still need it and *spare* otherwise; spare entries go least recently used first
when room is needed. Room for all pictures of a request is reserved (held, though not yet encoded) when it is admitted,
so two half-encoded requests never wait for each other. A picture's features arrive part by part (tile by tile), and
what is there can be used before the rest is.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vlm_engine.request import ImageSpan


@dataclass(frozen=True, slots=True, eq=False)
class ImageFeatures:
    """What a family's encoder made of one picture, or of a part of it.

    Attributes:
        rows: ``[tokens, hidden]``, one row for each image token.
        deepstack: further ``[tokens, hidden]`` levels added to the first decoder layers (Qwen3-VL), else empty.
    """

    rows: torch.Tensor
    deepstack: tuple[torch.Tensor, ...] = ()


def join_features(parts: Sequence[ImageFeatures]) -> ImageFeatures:
    """The features of a picture from those of its items, in their order."""
    if len(parts) == 1:
        return parts[0]
    levels = zip(*(part.deepstack for part in parts), strict=True)
    return ImageFeatures(torch.cat([part.rows for part in parts]), tuple(torch.cat(level) for level in levels))


def split_features(features: ImageFeatures, rows: Sequence[int]) -> list[ImageFeatures]:
    """The features of packed items, each with its share by rows. Copies: a part must not keep the whole alive.

    Raises:
        ValueError: the features can't be shared out by rows.
    """
    total = sum(rows)
    if any(len(features.rows) * count % total for count in rows):
        raise ValueError(f"{len(features.rows)} feature rows don't share out over items of {list(rows)} patches")
    counts = [len(features.rows) * count // total for count in rows]
    levels = [torch.split(level, counts) for level in features.deepstack]
    return [
        ImageFeatures(part.clone(), tuple(level[place].clone() for level in levels))
        for place, part in enumerate(torch.split(features.rows, counts))
    ]


@dataclass(slots=True)
class _Entry:
    num_bytes: int
    holders: Counter[str] = field(default_factory=Counter)
    parts: list[ImageFeatures] = field(default_factory=list)
    complete: bool = False


class EncoderCache:
    """Bytes-bounded; entries by content hash."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: dict[bytes, _Entry] = {}
        self._spare: OrderedDict[bytes, None] = OrderedDict()
        self._held_bytes = 0
        self._bytes = 0

    @property
    def free(self) -> int:
        """Bytes that new holds may use: all that is not held, spare entries included."""
        return self.capacity - self._held_bytes

    @property
    def usage(self) -> float:
        """Share of the capacity taken by entries, spare ones included."""
        return self._bytes / self.capacity if self.capacity else 0.0

    def encoded(self, content_hash: bytes) -> bool:
        """Whether all of the picture's features are there."""
        entry = self._entries.get(content_hash)
        return entry is not None and entry.complete

    def rows_ready(self, content_hash: bytes) -> int:
        """How many of the picture's feature rows are there, from the first on."""
        entry = self._entries.get(content_hash)
        return sum(len(part.rows) for part in entry.parts) if entry is not None else 0

    def wanted(self, content_hash: bytes) -> bool:
        """Whether a running request holds the picture and not all of its features are there yet."""
        entry = self._entries.get(content_hash)
        return entry is not None and bool(entry.holders) and not entry.complete

    def get(self, content_hash: bytes) -> ImageFeatures:
        """The features that are there, from the first row on (KeyError when there are none)."""
        entry = self._entries[content_hash]
        if not entry.parts:
            raise KeyError("picture is reserved but not encoded")
        if len(entry.parts) > 1:
            entry.parts = [join_features(entry.parts)]
        return entry.parts[0]

    def need(self, spans: Iterable[ImageSpan], start: int) -> int:
        """Bytes that holding the pictures needed from token ``start`` on would add to what is held."""
        wanted = {span.content_hash: span.num_bytes for span in spans if span.end > start}
        return sum(size for value, size in wanted.items() if not self._held(value))

    def hold(self, needs: Iterable[tuple[str, ImageSpan]]) -> None:
        """Keeps or reserves pictures for requests (by key).

        What is there already is held before room is made for anything new: otherwise one request's reservation could
        evict the spare features that another one was admitted with.
        """
        for key, span in sorted(needs, key=lambda need: need[1].content_hash not in self._entries):
            self._hold_one(key, span)

    def put(self, content_hash: bytes, part: ImageFeatures, complete: bool = True) -> None:
        """Adds the next rows of a held picture's features; ``complete`` with the last ones."""
        entry = self._entries[content_hash]
        entry.parts.append(part)
        entry.complete = complete

    def restart(self, content_hash: bytes) -> None:
        """Drops the rows of a held picture whose encoding failed or ended before its last row; nothing if there are
        none. Tokens computed from them stay computed: they were right."""
        entry = self._entries.get(content_hash)
        if entry is not None and not entry.complete:
            entry.parts = []

    def release(self, key: str, spans: Iterable[ImageSpan]) -> None:
        """Drops one hold of ``key`` for each of these spans."""
        for span in spans:
            entry = self._entries.get(span.content_hash)
            if entry is None or entry.holders[key] == 0:
                continue
            entry.holders[key] -= 1
            if entry.holders[key] == 0:
                del entry.holders[key]
            if not entry.holders:
                self._let_go(span.content_hash, entry)

    def check_integrity(self, holds: Mapping[str, int]) -> None:
        """Compares sizes and holds with the number of pictures each running request still needs.

        Raises:
            RuntimeError: bytes or holds don't add up.
        """
        held = sum(e.num_bytes for e in self._entries.values() if e.holders)
        total = sum(e.num_bytes for e in self._entries.values())
        if held != self._held_bytes or total != self._bytes or total > self.capacity:
            raise RuntimeError(f"encoder cache: held {self._held_bytes} of {held}, total {self._bytes} of {total}")
        counted: Counter[str] = Counter()
        for entry in self._entries.values():
            counted.update(entry.holders)
        if dict(counted) != {key: count for key, count in holds.items() if count}:
            raise RuntimeError(f"encoder cache: holds {dict(counted)}, expected {dict(holds)}")

    def _held(self, content_hash: bytes) -> bool:
        entry = self._entries.get(content_hash)
        return entry is not None and bool(entry.holders)

    def _hold_one(self, key: str, span: ImageSpan) -> None:
        entry = self._entries.get(span.content_hash)
        if entry is None:
            self._make_room(span.num_bytes)
            entry = self._entries[span.content_hash] = _Entry(span.num_bytes)
            self._bytes += span.num_bytes
            self._held_bytes += span.num_bytes
        elif not entry.holders:
            del self._spare[span.content_hash]
            self._held_bytes += entry.num_bytes
        entry.holders[key] += 1

    def _let_go(self, content_hash: bytes, entry: _Entry) -> None:
        self._held_bytes -= entry.num_bytes
        if not entry.complete:
            self._drop(content_hash)
        else:
            self._spare[content_hash] = None

    def _make_room(self, num_bytes: int) -> None:
        while self._bytes + num_bytes > self.capacity and self._spare:
            content_hash, _ = self._spare.popitem(last=False)
            self._drop(content_hash)
        if self._bytes + num_bytes > self.capacity:
            raise RuntimeError(f"encoder cache: {num_bytes} bytes asked for, {self.capacity - self._bytes} free")

    def _drop(self, content_hash: bytes) -> None:
        self._bytes -= self._entries.pop(content_hash).num_bytes
