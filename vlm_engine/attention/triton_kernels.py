"""Triton kernels of paged attention: write K and V, attend a work item, join the partial results of split contexts.

One kernel attends both decodes and prefill chunks; a program computes one *query tile* (a few new tokens, times the
query heads that share a KV head) against one range of its sequence's context. Decodes run it with 16 rows, prefill
chunks with more; either may be split along the context (flash-decoding), and :func:`join_splits` then merges the
normalised partial results by their log-sum-exp. Softmax is online and in float32, in base 2.

A work item is 8 int32 (:mod:`vlm_engine.attention.triton_work` writes them)::

    0 row        first row of the tile in the packed batch
    1 count      tokens in the tile
    2 position   index of the tile's first token in its context: it sees the keys 0 .. position
    3 table      where the sequence's block table begins in ``tables``
    4 begin      first key of this item's range, a multiple of KEYS
    5 end        one past the last key of the range
    6 partial    where its partial result goes; -1: it has the whole context and writes the output itself

Row ``i`` of a tile is query head ``i % GROUP`` of token ``i // GROUP``. Page numbers and rows are widened to int64
before they are multiplied by a stride: caches beyond 2^31 elements are common.

With ``TRITON_INTERPRET=1`` set before this module is imported, the kernels run on CPU tensors.
"""

# Pointers and tiles exist in Triton's compiler only: there is no Python type to name.
# ruff: noqa: ANN001, ANN201, ANN202, SIM108
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

_WIDEN = tl.constexpr(triton.knobs.runtime.interpret)
"""numpy has no bfloat16: Triton's interpreter would multiply its bits as integers. float32 holds both 16-bit types."""


@triton.jit
def _load_rows(base, offsets, inside, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, MASKED: tl.constexpr):
    """``[n, HEAD_PAD]``: HEAD_DIM elements from each of ``base + offsets`` on; zeros after them and if not inside."""
    column = tl.arange(0, HEAD_PAD)
    pointers = base + offsets[:, None] + column[None, :]
    if MASKED:
        if HEAD_DIM == HEAD_PAD:
            rows = tl.load(pointers, mask=inside[:, None], other=0.0)
        else:
            rows = tl.load(pointers, mask=inside[:, None] & (column < HEAD_DIM)[None, :], other=0.0)
    else:
        if HEAD_DIM == HEAD_PAD:
            rows = tl.load(pointers)
        else:
            rows = tl.load(pointers, mask=(column < HEAD_DIM)[None, :], other=0.0)
    return rows


@triton.jit
def _store_rows(base, offsets, rows, inside, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr):
    column = tl.arange(0, HEAD_PAD)
    mask = inside[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(base + offsets[:, None] + column[None, :], rows.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _dot(a, b, addend):
    """``a @ b + addend`` in float32; float32 operands are multiplied exactly, where the default would be TF32."""
    if _WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, addend, input_precision="ieee")


@triton.jit(do_not_specialize=["tokens"])
def write_kv(
    key,
    value,
    keys,
    values,
    slots,
    tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Copies K and V of new tokens into their page slots. Grid: (tokens / TOKENS rounded up, KV heads)."""
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    inside = row < tokens
    slot = tl.load(slots + row, mask=inside, other=0)
    target = slot * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM
    wide = row.to(tl.int64)
    source = wide * key_token_stride + head * key_head_stride
    _store_rows(keys, target, _load_rows(key, source, inside, HEAD_DIM, HEAD_PAD, True), inside, HEAD_DIM, HEAD_PAD)
    source = wide * value_token_stride + head * value_head_stride
    _store_rows(values, target, _load_rows(value, source, inside, HEAD_DIM, HEAD_PAD, True), inside, HEAD_DIM, HEAD_PAD)


@triton.jit
def _attend_range(
    total,
    sums,
    peak,
    queries,
    keys,
    values,
    table,
    low,
    high,
    end,
    last,
    scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Takes the keys ``low .. high`` into the running softmax.

    MASKED: row i sees the keys up to ``last[i]`` only, and none from ``end`` on; those may lie in pages never written,
    whose bytes (perhaps NaN) must not enter a product. Without it every row sees every key.
    """
    for start in tl.range(low, high, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < end
        if MASKED:
            page = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0)
        else:
            page = tl.load(table + key // BLOCK_SIZE)
        slot = page.to(tl.int64) * BLOCK_SIZE + key % BLOCK_SIZE
        offsets = slot * (KV_HEADS * HEAD_DIM)
        k = _load_rows(keys, offsets, inside, HEAD_DIM, HEAD_PAD, MASKED)
        scores = _dot(queries, tl.trans(k), tl.zeros([queries.shape[0], KEYS], tl.float32)) * scale
        if MASKED:
            scores = tl.where((key[None, :] <= last[:, None]) & inside[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        if MASKED:
            # A row that has seen no key yet: any finite reference will do, -inf minus -inf would not.
            reference = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        else:
            reference = new_peak
        weights = tl.exp2(scores - reference[:, None])
        shrink = tl.exp2(peak - reference)
        sums = sums * shrink + tl.sum(weights, 1)
        v = _load_rows(values, offsets, inside, HEAD_DIM, HEAD_PAD, MASKED)
        total = _dot(weights.to(v.dtype), v, total * shrink[:, None])
        peak = new_peak
    return total, sums, peak


@triton.jit
def attend(
    query,
    keys,
    values,
    out,
    tables,
    items,
    partial_out,
    partial_lse,
    scale,
    query_token_stride,
    query_head_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """One work item for one KV head. Grid: (items, KV heads).

    query ``[tokens, heads, head_dim]`` by its strides; keys, values ``[blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]`` and
    out ``[tokens, heads, head_dim]`` contiguous; partial_out float32 ``[partials, KV_HEADS, ROWS, HEAD_PAD]``,
    partial_lse without the last axis; ``scale`` of the scores times log2(e).
    """
    item = items + tl.program_id(0) * 8
    head = tl.program_id(1)
    count, position = tl.load(item + 1), tl.load(item + 2)
    begin, end, partial = tl.load(item + 4), tl.load(item + 5), tl.load(item + 6)
    table = tables + tl.load(item + 3)
    lane = tl.arange(0, ROWS)
    token = lane // GROUP
    inside = token < count
    row = tl.load(item).to(tl.int64) + token
    query_head = head * GROUP + lane % GROUP
    source = row * query_token_stride + query_head * query_head_stride
    queries = _load_rows(query, source, inside, HEAD_DIM, HEAD_PAD, True)
    last = position + token

    total = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    keys += head * HEAD_DIM
    values += head * HEAD_DIM
    # Key tiles that all rows see whole need no mask.
    seen_by_all = tl.minimum(end, position + 1)
    middle = begin + tl.maximum(seen_by_all - begin, 0) // KEYS * KEYS
    total, sums, peak = _attend_range(
        total, sums, peak, queries, keys, values, table, begin, middle, end, last, scale,
        KV_HEADS, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, KEYS, False,
    )  # fmt: skip
    total, sums, peak = _attend_range(
        total, sums, peak, queries, keys, values, table, middle, end, end, last, scale,
        KV_HEADS, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, KEYS, True,
    )  # fmt: skip

    # A range may lie wholly beyond what a tile's first rows see.
    seen = sums > 0.0
    sums = tl.where(seen, sums, 1.0)
    result = total / sums[:, None]
    if partial < 0:
        target = row * (KV_HEADS * GROUP * HEAD_DIM) + query_head * HEAD_DIM
        _store_rows(out, target, result, inside, HEAD_DIM, HEAD_PAD)
    else:
        place = (partial.to(tl.int64) * KV_HEADS + head) * ROWS + lane
        tl.store(partial_lse + place, tl.where(seen, peak + tl.log2(sums), float("-inf")), mask=inside)
        _store_rows(partial_out, place * HEAD_PAD, result, inside, HEAD_PAD, HEAD_PAD)


@triton.jit
def join_splits(
    out,
    joins,
    partial_out,
    partial_lse,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merges the partial results of one row of a split tile. Grid: (joins, KV heads, rows in use).

    A join is 4 int32: first row of the tile in the packed batch, tokens in it, first partial, partials.
    """
    join = joins + tl.program_id(0) * 4
    head = tl.program_id(1)
    lane = tl.program_id(2)
    if lane < tl.load(join + 1) * GROUP:
        first, splits = tl.load(join + 2), tl.load(join + 3)
        column = tl.arange(0, HEAD_PAD)
        total = tl.zeros([HEAD_PAD], tl.float32)
        sums = 0.0
        peak = float("-inf")
        for start in tl.range(0, splits, SPLITS):
            split = start + tl.arange(0, SPLITS)
            inside = split < splits
            place = ((first + split).to(tl.int64) * KV_HEADS + head) * ROWS + lane
            lse = tl.load(partial_lse + place, mask=inside, other=float("-inf"))
            new_peak = tl.maximum(peak, tl.max(lse, 0))
            reference = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weights = tl.exp2(lse - reference)
            shrink = tl.exp2(peak - reference)
            part = tl.load(partial_out + place[:, None] * HEAD_PAD + column[None, :], mask=inside[:, None], other=0.0)
            total = total * shrink + tl.sum(part * weights[:, None], 0)
            sums = sums * shrink + tl.sum(weights, 0)
            peak = new_peak
        row = tl.load(join).to(tl.int64) + lane // GROUP
        target = row * (KV_HEADS * GROUP * HEAD_DIM) + (head * GROUP + lane % GROUP) * HEAD_DIM
        tl.store(out + target + column, (total / sums).to(out.dtype.element_ty), mask=column < HEAD_DIM)


INTERPRETED = not isinstance(attend, triton.JITFunction)
"""Whether the kernels run in Triton's interpreter."""
