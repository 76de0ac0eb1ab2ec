"""Book-keeping of KV pages: who owns which, which can be found again. No tensors here.

A page (block) is in one of three conditions::

    referenced        ref_count > 0, in one or more block tables
    free, cached      ref_count = 0, holds a full block that a hash finds again; evicted least recently used first
    free, blank       ref_count = 0, nothing worth keeping; handed out before any cached one

Free pages of both kinds lie in one ordered dict, blank ones at its front, so allocation is O(1).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice


class BlockPool:
    """Pages by number, ref-counted, with a prefix cache over full blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_count = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Pages that can be handed out now, cached ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of pages that are referenced, 0 to 1."""
        return 1.0 - len(self._free) / self.num_blocks

    def lookup(self, hashes: Sequence[bytes]) -> list[int]:
        """Pages of the longest cached prefix of a chain of hashes. Changes nothing."""
        found: list[int] = []
        for value in hashes:
            block = self._cached.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these pages are free (taking them uses up free pages)."""
        return sum(1 for block in blocks if self._ref_count[block] == 0)

    def count_sole(self, blocks: Iterable[int]) -> int:
        """How many of these pages have one reference only (releasing them frees so many)."""
        return sum(1 for block in blocks if self._ref_count[block] == 1)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Adds a reference to cached pages found by :meth:`lookup`."""
        for block in blocks:
            if self._ref_count[block] == 0:
                del self._free[block]
            self._ref_count[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hands out blank pages, evicting the least recently used cached ones.

        Several pages follow one another where twice as many candidates hold such a run, and come in ascending order in
        any case: attention on a CPU then reads them where they lie.

        Raises:
            RuntimeError: fewer pages are free; the scheduler promised otherwise, so this is a fault of the engine.
        """
        if count > len(self._free):
            raise RuntimeError(f"{count} KV blocks asked for, {len(self._free)} are free")
        blocks = self._choose(count)
        for block in blocks:
            del self._free[block]
            self._forget(block)
            self._ref_count[block] = 1
        return blocks

    def _choose(self, count: int) -> list[int]:
        """The next free pages in their order of eviction, or a run among twice as many; blank ones while they last."""
        if count <= 1:
            return list(islice(self._free, count))
        candidates = list(islice(self._free, 2 * count))
        blank = [block for block in candidates if self._hash_of[block] is None]
        if len(blank) >= count:
            candidates = blank
        ascending = sorted(candidates)
        for low, high in zip(ascending, ascending[count - 1 :], strict=False):
            if high - low == count - 1:
                return list(range(low, high + 1))
        return sorted(candidates[:count])

    def release(self, blocks: Sequence[int]) -> None:
        """Drops a reference of each page. A chain's tail becomes evictable before its head: more prompts share that."""
        for block in reversed(blocks):
            self._ref_count[block] -= 1
            if self._ref_count[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def publish(self, block: int, value: bytes) -> None:
        """Makes a full, computed page findable. Of two pages with the same content the first stays."""
        if self._hash_of[block] is None and value not in self._cached:
            self._hash_of[block] = value
            self._cached[value] = block

    def clear_cache(self) -> None:
        """Forgets every cached prefix; referenced pages stay valid for their owners."""
        for block in range(self.num_blocks):
            self._forget(block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compares the book-keeping with the block tables of all running requests.

        Raises:
            RuntimeError: a page is lost, owned twice without a reference, or cached wrongly.
        """
        owners = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            if self._ref_count[block] != owners[block]:
                raise RuntimeError(f"block {block}: {self._ref_count[block]} references, {owners[block]} owners")
            if (self._ref_count[block] == 0) != (block in self._free):
                raise RuntimeError(f"block {block}: free list disagrees with ref count {self._ref_count[block]}")
        for value, block in self._cached.items():
            if self._hash_of[block] != value:
                raise RuntimeError(f"block {block}: cached under a hash that is not its own")

    def _forget(self, block: int) -> None:
        value = self._hash_of[block]
        if value is not None:
            self._hash_of[block] = None
            del self._cached[value]
