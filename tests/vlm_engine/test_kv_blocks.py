"""The block pool: which pages are handed out."""

from __future__ import annotations

import random

from vlm_engine.kv_blocks import BlockPool


def test_a_prompts_pages_follow_one_another_where_a_run_is_near():
    """given: a hole of two pages before a long run of blank ones; then: three pages come from the run."""
    pool = BlockPool(20)
    first = pool.allocate(6)
    assert first == [0, 1, 2, 3, 4, 5]
    pool.release(first[2:4])
    assert pool.allocate(3) == [6, 7, 8]
    assert sorted(pool.allocate(2)) == [2, 3]
    pool.check_integrity([[0, 1], [4, 5], [6, 7, 8], [2, 3]])


def test_no_cached_page_is_evicted_for_a_run_while_blank_ones_last():
    pool = BlockPool(8)
    blocks = pool.allocate(8)
    for block in blocks[4:]:
        pool.publish(block, bytes([block]))
    pool.release(blocks[4:])
    pool.release([0])
    pool.release([2])
    assert sorted(pool.allocate(2)) == [0, 2]
    assert pool.lookup([bytes([4])]) == [4]


def test_scattered_pages_come_ascending_and_the_oldest_cached_go_first():
    pool = BlockPool(9)
    blocks = pool.allocate(9)
    for block in (6, 0, 3, 8):
        pool.publish(block, bytes([block]))
        pool.release([block])
    assert pool.allocate(2) == [0, 6]
    assert pool.lookup([bytes([3])]) == [3]
    assert len(set(blocks)) == 9


def test_random_use_keeps_the_books():
    rng = random.Random(3)
    pool, tables, key = BlockPool(64), [], 0
    for _ in range(3000):
        if tables and (rng.random() < 0.5 or pool.num_free == 0):
            pool.release(tables.pop(rng.randrange(len(tables))))
        else:
            blocks = pool.allocate(rng.randint(1, min(9, pool.num_free)))
            assert blocks == sorted(set(blocks))
            for block in blocks[: rng.randint(0, len(blocks))]:
                key += 1
                pool.publish(block, key.to_bytes(4, "big"))
            tables.append(blocks)
        pool.check_integrity(tables)
