"""How a step is cut into work items: plain integers, no device."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from vlm_engine.attention import Sequence
from vlm_engine.attention.triton_work import MIN_SPLIT, WAVES, Tile, Tuning, cut, pad_head, tuning_for

H200 = Tuning(Tile(16, 64, 4, 5), Tile(64, 64, 4, 3), processors=132)


def sequences_of(rows):
    """(new tokens, context) of each sequence -> the packed batch, and where each block table begins."""
    sequences, tables, start = [], [], 0
    for number, (length, context) in enumerate(rows):
        sequences.append(Sequence(start, length, context, ()))
        tables.append(1000 * number)
        start += length
    return tuple(sequences), tables


rows = st.lists(
    st.tuples(st.integers(1, 200), st.integers(0, 5000)).map(lambda pair: (pair[0], sum(pair))), min_size=1, max_size=12
)


@settings(max_examples=300, deadline=None)
@given(
    rows=rows,
    group=st.sampled_from([1, 2, 3, 4, 7, 16]),
    kv_heads=st.sampled_from([1, 2, 8, 32]),
    processors=st.integers(1, 160),
    keys=st.sampled_from([16, 32, 64]),
)
def test_every_token_meets_its_whole_context_exactly_once(rows, group, kv_heads, processors, keys):
    tuning = Tuning(Tile(16, keys, 4, 2), Tile(64, keys, 4, 2), processors)
    sequences, tables = sequences_of(rows)
    covered: dict[int, list[tuple[int, int]]] = {}
    for launch in cut(sequences, tables, group, kv_heads, tuning):
        partials = {}
        for row, count, position, table, begin, end, partial, _ in launch.items:
            sequence = sequences[tables.index(table)]
            assert 1 <= count <= launch.tile.rows // group
            assert position == sequence.context - sequence.length + row - sequence.start
            assert begin % keys == 0 and begin < end <= position + count
            if partial < 0:
                assert (begin, end) == (0, position + count)
            else:
                partials[partial] = (row, count, begin, end)
            for token in range(row, row + count):
                covered.setdefault(token, []).append((begin, end))
        check_joins(launch, partials, kv_heads, tuning)
    for sequence in sequences:
        for token in range(sequence.start, sequence.start + sequence.length):
            ranges = sorted(covered[token])
            assert ranges[0][0] == 0 and ranges[-1][1] > sequence.context - sequence.length + token - sequence.start
            assert all(left[1] == right[0] for left, right in pairwise(ranges))


def check_joins(launch, partials, kv_heads, tuning):
    """Joins take every partial result once, and there are never more than the backend has room for."""
    taken = [p for _, _, first, splits in launch.joins for p in range(first, first + splits)]
    assert sorted(taken) == sorted(partials) == list(range(launch.partials))
    assert launch.partials <= 2 * max(1, WAVES * tuning.processors // kv_heads)
    for row, count, first, splits in launch.joins:
        assert splits >= 2 and {partials[p][:2] for p in range(first, first + splits)} == {(row, count)}


def test_a_ragged_batch_splits_only_its_long_context():
    sequences, tables = sequences_of([(1, 6000)] + [(1, 200)] * 7)
    (launch,) = cut(sequences, tables, 2, 8, H200)
    assert [join[0] for join in launch.joins] == [0]
    assert launch.joins[0][3] >= 16
    assert sum(item[6] < 0 for item in launch.items) == 7
    assert launch.items[0][5] - launch.items[0][4] == max(item[5] - item[4] for item in launch.items)


def test_a_lone_decode_fills_the_device_and_a_full_batch_is_left_whole():
    sequences, tables = sequences_of([(1, 100_000)])
    (lone,) = cut(sequences, tables, 2, 8, H200)
    assert 0.8 * WAVES * 132 <= len(lone.items) * 8 <= WAVES * 132
    sequences, tables = sequences_of([(1, 4000)] * 64)
    (full,) = cut(sequences, tables, 2, 8, H200)
    assert len(full.items) == 64 and not full.joins


def test_short_contexts_are_never_split():
    sequences, tables = sequences_of([(1, MIN_SPLIT), (1, 10)])
    (launch,) = cut(sequences, tables, 1, 1, H200)
    assert not launch.joins


def test_a_chunk_behind_a_long_prefix_is_split_and_a_whole_prompt_is_not():
    sequences, tables = sequences_of([(32, 50_000)])
    (behind,) = cut(sequences, tables, 2, 8, H200)
    assert behind.tile == H200.large and behind.joins
    sequences, tables = sequences_of([(2048, 2048)])
    (whole,) = cut(sequences, tables, 2, 8, H200)
    assert not whole.joins and len(whole.items) == 64


def test_decodes_and_short_chunks_take_small_tiles_chunks_take_large_ones():
    sequences, tables = sequences_of([(1, 50), (4, 60), (5, 60), (300, 300)])
    small, large = cut(sequences, tables, 4, 2, H200)
    assert {item[0] for item in small.items} == {0, 1}
    assert {item[0] for item in large.items if item[3] == 2000} == {5}
    assert (small.tile, large.tile) == (H200.small, H200.large)


def test_heads_are_padded_to_powers_of_two():
    assert [pad_head(d) for d in (8, 16, 24, 64, 72, 80, 96, 128)] == [16, 16, 32, 64, 128, 128, 128, 128]


def test_devices_with_little_shared_memory_get_smaller_tiles():
    roomy, tight = (tuning_for(c, 128, 2, 100) for c in ((9, 0), (8, 9)))
    assert tight.large.keys < roomy.large.keys
    assert tuning_for((12, 0), 128, 2, 100) == tight
