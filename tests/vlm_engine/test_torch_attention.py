"""The torch backend against dense attention: buckets, ragged contexts, and pages that hold rubbish."""

from __future__ import annotations

import random

import pytest
import torch

from vlm_engine.attention import KVCache, Sequence, StepMetadata
from vlm_engine.attention.torch_backend import BLOCK_ROWS, PADDING, SPARE_TOKENS, TorchBackend, _blocks, _bucketed


def dense(query, keys, values, scale, context):
    """Causal attention of the last ``len(query)`` of ``context`` tokens; ``[x, heads, d]`` and ``[context, kv, d]``."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(group, dim=1).double() for t in (keys, values))
    scores = torch.einsum("xhd,lhd->hxl", query.double(), keys) * scale
    mask = torch.ones(query.shape[0], context, dtype=torch.bool).tril(context - query.shape[0])
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("hxl,lhd->xhd", weights, values)


def run(
    shapes,
    heads=6,
    kv_heads=2,
    head_dim=16,
    block_size=16,
    seed=0,
    shuffled=True,
    heads_first=True,
    dtype=torch.float32,
):
    """Random K and V for (context, new) shapes in shuffled pages, everything never written being NaN. Gives what was
    prepared for the step."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    needed = [-(-context // block_size) for context, _ in shapes]
    pages = list(range(sum(needed) + 2, 0, -1))
    if shuffled:
        rng.shuffle(pages)
    cpu = torch.device("cpu")
    kv = KVCache.allocate(1, len(pages) + 1, block_size, kv_heads, head_dim, dtype, cpu, heads_first)
    kv.keys[0].fill_(float("nan"))
    kv.values[0].fill_(float("nan"))
    sequences, slots, parts, start = [], [], [], 0
    for (context, new), count in zip(shapes, needed, strict=True):
        blocks = tuple(pages.pop() for _ in range(count))
        k, v = (torch.randn(context, kv_heads, head_dim, generator=generator).to(dtype) for _ in range(2))
        place = torch.tensor([blocks[i // block_size] * block_size + i % block_size for i in range(context)])
        kv.keys[0].flatten(0, 1)[place[: context - new]] = k[: context - new]
        kv.values[0].flatten(0, 1)[place[: context - new]] = v[: context - new]
        sequences.append(Sequence(start, new, context, blocks))
        slots.append(place[context - new :])
        parts.append((k, v))
        start += new
    query = torch.randn(start, heads, head_dim, generator=generator).to(dtype)
    new_k, new_v = (torch.cat([p[n][c - x :] for p, (c, x) in zip(parts, shapes, strict=True)]) for n in (0, 1))
    backend = TorchBackend(dtype)
    prepared = backend.prepare(tuple(sequences), block_size, heads, kv_heads, cpu)
    step = StepMetadata(kv, backend, tuple(sequences), torch.cat(slots), prepared)
    out = backend.attend(0, query, new_k, new_v, head_dim**-0.5, step)
    for sequence, (k, v) in zip(sequences, parts, strict=True):
        own = slice(sequence.start, sequence.start + sequence.length)
        expected = dense(query[own], k, v, head_dim**-0.5, sequence.context)
        close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.03}
        torch.testing.assert_close(out[own].double(), expected, **close)
    return prepared


@pytest.mark.parametrize("heads", [2, 4, 6, 14])
def test_decodes_of_any_length_in_one_step(heads):
    run([(1, 1), (15, 1), (16, 1), (17, 1), (100, 1), (101, 1), (130, 1), (500, 1)], heads=heads)


def test_decodes_and_chunks_with_and_without_a_prefix():
    run([(40, 1), (33, 33), (70, 20), (48, 1), (16, 16), (64, 5), (17, 2)])


@pytest.mark.parametrize("seed", range(12))
def test_random_ragged_steps(seed):
    rng = random.Random(seed)
    shapes = [(context := rng.randrange(1, 200), rng.choice([1, rng.randrange(1, context + 1)])) for _ in range(9)]
    run(shapes, block_size=rng.choice([4, 16, 32]), seed=seed)


def test_pages_that_follow_one_another_are_read_where_they_lie():
    assert run([(70, 20), (33, 33), (500, 1)], shuffled=False).gather is None
    whole = run([(70, 20), (33, 33), (500, 1)], shuffled=True).gather
    assert len(whole) == 70 + 33 + 500, "each of more than one page"
    assert len(run([(70, 20), (40, 1), (41, 1)], shuffled=False).gather) == 2 * 41, "padded decodes are gathered"


def test_pages_whose_heads_lie_side_by_side_give_the_same():
    run([(40, 1), (33, 33), (70, 20), (48, 1), (500, 1)], heads_first=False)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("heads_first", [False, True])
def test_long_contexts_in_bfloat16_are_attended_by_products(shuffled, heads_first):
    shapes = [(1100, 1), (1500, 4), (1300, 300), (700, 700), (40, 40)]
    prepared = run(
        shapes, heads=6, kv_heads=2, head_dim=64, shuffled=shuffled, heads_first=heads_first, dtype=torch.bfloat16
    )
    by_length = {bucket.length: bucket.products for bucket in prepared.buckets}
    assert by_length == {1: True, 4: True, 300: True, 700: True, 40: False}
    assert not any(bucket.products for bucket in run(shapes).buckets), "float32 keeps SDPA"


@pytest.mark.parametrize(
    ("rows", "length", "context"), [(12, 4, 6000), (900, 300, 1300), (2100, 700, 700), (6144, 2048, 9000)]
)
def test_blocks_of_products_cover_every_row_once_and_every_key_that_it_sees(rows, length, context):
    blocks = _blocks(rows, length, context)
    assert [row for first, last, _ in blocks for row in range(first, last)] == list(range(rows))
    for first, last, seen in blocks:
        assert last - first <= max(BLOCK_ROWS[1], BLOCK_ROWS[0])
        assert seen >= max(context - length + row % length + 1 for row in range(first, last))


def test_padding_never_reads_what_nobody_wrote():
    """C13's kind: page 0 holds NaN, and decodes of unlike length share a bucket: even masked it would spread."""
    run([(100, 1), (90, 1)])


@pytest.mark.parametrize(
    "lengths", [[6000] + [200] * 7, [100, 99, 81, 80, 79], list(range(1, 60)), list(range(1, 4000, 37))]
)
def test_buckets_are_padded_by_a_quarter_or_a_few_hundred_tokens_at_most(lengths):
    buckets = _bucketed([Sequence(i, 1, length, ()) for i, length in enumerate(lengths)], PADDING)
    assert sorted(s.context for bucket in buckets for s in bucket) == sorted(lengths)
    for bucket in buckets:
        longest = max(s.context for s in bucket)
        beyond = [longest - s.context for s in bucket if longest > PADDING * s.context]
        assert sum(beyond) <= SPARE_TOKENS
