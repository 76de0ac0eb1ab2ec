"""Cuts a packed step into work items for the attention kernel. Plain integers: no torch, no Triton, no device.

A sequence's new tokens are cut into *query tiles* of ``rows // group`` tokens. A tile whose context is long compared
with its share of the device is split along the context, so that a lone decode over 100,000 tokens, or a short chunk
behind a long prefix, still fills the device. The lengths are known here, so nothing waits for the device, and a ragged
batch is balanced: of the contexts 6000 and 7 x 200 only the first is split.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from vlm_engine.attention.base import Sequence

WAVES = 2
"""Programs per multiprocessor that a step's splitting aims at."""

MIN_SPLIT = 256
"""Fewest keys that are worth a partial result: below, writing and joining it costs what reading the keys does."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of one program of the attention kernel.

    Attributes:
        rows: new tokens times query heads per KV head.
        keys: keys per turn of its loop.
        warps: of 32 threads.
        stages: depth of the software pipeline over the keys.
    """

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the work is cut into.

    Attributes:
        small: for sequences whose new tokens all fit one of it: decodes, and chunks of a few tokens.
        large: for the rest.
        processors: multiprocessors of the device.
        min_split: fewest keys in a split.
    """

    small: Tile
    large: Tile
    processors: int
    min_split: int = MIN_SPLIT


def pad_head(head_dim: int) -> int:
    """The power of two, at least 16, that a head is padded to: what Triton's matrix product takes."""
    return max(16, 1 << (head_dim - 1).bit_length())


def tuning_for(capability: tuple[int, int], head_dim: int, itemsize: int, processors: int) -> Tuning:
    """Tiles that compile without register spills and fit a multiprocessor's shared memory at least twice.

    ``benchmarks/results/triton_resources.json`` has the registers and shared memory of each, as compiled. Which tile is
    fastest is for ``benchmarks/gpu_check.sh`` to measure; these are reasoned: K and V are read behind the block table,
    so Triton's pipeliner keeps two buffers of them only from 5 stages on. Decodes wait for memory and get that; chunks
    compute, and rather have two programs per multiprocessor.

    Args:
        capability: CUDA compute capability.
        itemsize: bytes of an element.
        processors: multiprocessors of the device.
    """
    # Exact float32 products don't use tensor cores: small tiles, many warps. A mode for checking, not for speed.
    if itemsize == 4:
        return Tuning(Tile(16, 32, 8, 3), Tile(32, 16, 8, 2), processors)
    if pad_head(head_dim) <= 64:
        return Tuning(Tile(16, 64, 4, 5), Tile(64, 64, 4, 5), processors)
    if capability[0] in (9, 10):
        return Tuning(Tile(16, 64, 4, 5), Tile(64, 64, 4, 3), processors)
    # 8.6, 8.9 and 12.x have 99 KiB of shared memory per program, 8.0 and 8.7 have 163.
    roomy = capability in ((8, 0), (8, 7))
    return Tuning(Tile(16, 32, 4, 5), Tile(64, 32, 4, 5 if roomy else 3), processors)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the attention kernel, and of the join kernel when ``joins`` isn't empty.

    Attributes:
        items: 8 int32 each, see :mod:`vlm_engine.attention.triton_kernels`; the longest ranges first.
        joins: 4 int32 each.
        partials: partial results of all split tiles.
        join_rows: most rows in use of a split tile.
    """

    tile: Tile
    items: list[tuple[int, ...]]
    joins: list[tuple[int, ...]]
    partials: int
    join_rows: int


@dataclass(frozen=True, slots=True)
class _QueryTile:
    row: int
    count: int
    position: int
    table: int

    @property
    def end(self) -> int:
        """One past the last key that its last token sees."""
        return self.position + self.count


def cut(sequences: Seq[Sequence], tables: Seq[int], group: int, kv_heads: int, tuning: Tuning) -> list[Launch]:
    """The launches of a step: small tiles, large tiles; a kind without work is left out.

    Args:
        sequences: the packed batch.
        tables: where each sequence's block table begins.
        group: query heads per KV head.
    """
    small: list[_QueryTile] = []
    large: list[_QueryTile] = []
    for sequence, table in zip(sequences, tables, strict=True):
        fits = sequence.length * group <= tuning.small.rows
        tile, tiles = (tuning.small, small) if fits else (tuning.large, large)
        step = tile.rows // group
        prefix = sequence.context - sequence.length
        for first in range(0, sequence.length, step):
            count = min(step, sequence.length - first)
            tiles.append(_QueryTile(sequence.start + first, count, prefix + first, table))
    kinds = ((tuning.small, small), (tuning.large, large))
    return [_launch(tile, tiles, group, kv_heads, tuning) for tile, tiles in kinds if tiles]


def _launch(tile: Tile, tiles: Seq[_QueryTile], group: int, kv_heads: int, tuning: Tuning) -> Launch:
    items: list[tuple[int, ...]] = []
    joins: list[tuple[int, ...]] = []
    partials = join_rows = 0
    longest = _split_length(sum(t.end for t in tiles), tile.keys, kv_heads, tuning)
    for t in tiles:
        if t.end <= longest:
            items.append((t.row, t.count, t.position, t.table, 0, t.end, -1, 0))
            continue
        ranges = _ranges(t.end, longest, tile.keys)
        joins.append((t.row, t.count, partials, len(ranges)))
        join_rows = max(join_rows, t.count * group)
        for begin, end in ranges:
            items.append((t.row, t.count, t.position, t.table, begin, end, partials, 0))
            partials += 1
    # The longest first: a long item started last would run alone at the end.
    items.sort(key=lambda item: item[4] - item[5])
    return Launch(tile, items, joins, partials, join_rows)


def _split_length(total: int, keys: int, kv_heads: int, tuning: Tuning) -> int:
    """Keys per item so that a launch over ``total`` keys gives each multiprocessor WAVES programs, if it can."""
    wanted = max(1, WAVES * tuning.processors // kv_heads)
    length = max(tuning.min_split, -(-total // wanted))
    return -(-length // keys) * keys


def _ranges(end: int, longest: int, keys: int) -> list[tuple[int, int]]:
    """``0 .. end`` in the fewest ranges of at most ``longest`` keys, of equal numbers of key tiles (the last: less)."""
    splits = -(-end // longest)
    key_tiles = -(-end // keys)
    size = -(-key_tiles // splits) * keys
    return [(begin, min(begin + size, end)) for begin in range(0, end, size)]
