"""Features of encoded pictures, kept by content: the one place they live.

An entry is *held* by requests that still need it and *spare* otherwise; spare entries go least recently used first
when room is needed. Room for all pictures of a request is reserved (held, though not yet encoded) when it is admitted,
so two half-encoded requests never wait for each other.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from vlm_engine.request import ImageSpan


@dataclass(frozen=True, slots=True, eq=False)
class ImageFeatures:
    """What a family's encoder made of one picture.

    Attributes:
        rows: ``[tokens, hidden]``, one row for each image token.
        deepstack: further ``[tokens, hidden]`` levels added to the first decoder layers (Qwen3-VL), else empty.
    """

    rows: torch.Tensor
    deepstack: tuple[torch.Tensor, ...] = ()


@dataclass(slots=True)
class _Entry:
    num_bytes: int
    holders: Counter[str] = field(default_factory=Counter)
    features: ImageFeatures | None = None


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
        """Whether the features are there."""
        entry = self._entries.get(content_hash)
        return entry is not None and entry.features is not None

    def wanted(self, content_hash: bytes) -> bool:
        """Whether a running request holds the picture and its features aren't there yet."""
        entry = self._entries.get(content_hash)
        return entry is not None and bool(entry.holders) and entry.features is None

    def get(self, content_hash: bytes) -> ImageFeatures:
        """The features of an encoded picture (KeyError otherwise)."""
        entry = self._entries[content_hash]
        if entry.features is None:
            raise KeyError("picture is reserved but not encoded")
        return entry.features

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

    def put(self, content_hash: bytes, features: ImageFeatures) -> None:
        """Stores the features of a held picture."""
        self._entries[content_hash].features = features

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
        if entry.features is None:
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
