"""The Triton kernels in Triton's interpreter.

Not collected by itself: ``test_triton_interpreter.py`` runs this file in a process of its own, because the interpreter
has to be switched on before the kernels are decorated.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from benchmarks.attention_cases import TOLERANCE, Case, build, check, error
from vlm_engine.attention import KVCache, Sequence, StepMetadata
from vlm_engine.attention.triton_backend import JOIN_SPLITS, AttentionShape, TritonBackend
from vlm_engine.attention.triton_kernels import INTERPRETED
from vlm_engine.attention.triton_work import Tile, Tuning, tuning_for

CPU = torch.device("cpu")
FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
SMALL_TILES = Tuning(Tile(16, 16, 4, 2), Tile(32, 32, 4, 2), processors=4, min_split=64)

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")


def shape_of(case: Case) -> AttentionShape:
    return AttentionShape(case.heads, case.kv_heads, case.head_dim, case.block_size, case.dtype)


def backend_for(case: Case, tuning: Tuning = SMALL_TILES) -> TritonBackend:
    return TritonBackend(shape_of(case), CPU, tuning)


# Every group, head size, page size and dtype; pairs of them as far as few cases go.
GRID = [
    (1, 64, 16, FLOAT),
    (2, 80, 32, FLOAT),
    (3, 96, 64, FLOAT),
    (4, 128, 16, FLOAT),
    (7, 64, 32, FLOAT),
    (1, 80, 64, BRAIN),
    (2, 128, 32, BRAIN),
    (3, 64, 16, BRAIN),
    (4, 96, 32, BRAIN),
    (7, 128, 64, BRAIN),
    (1, 128, 32, HALF),
    (2, 96, 16, HALF),
    (3, 80, 32, HALF),
    (4, 64, 64, HALF),
    (7, 80, 16, HALF),
]


@pytest.mark.parametrize(("group", "head_dim", "page", "dtype"), GRID)
def test_a_mixed_batch_around_page_boundaries(group, head_dim, page, dtype):
    rows = (
        (1, page),  # a decode that fills its page exactly
        (1, page + 1),  # and one that has just begun the next
        (1, 1),  # nothing but itself
        (page + 1, page + 1),  # a whole prompt, one token over a page
        (4, page + 3),  # a chunk behind a prefix that ends inside a page
    )
    case = Case("edges", group, 1, head_dim, page, dtype, rows, seed=group)
    check(case, backend_for(case), CPU)


@pytest.mark.parametrize("seed", range(6))
def test_random_ragged_batches(seed):
    rng = random.Random(seed)
    kv_heads, group = rng.choice([(1, 3), (2, 2), (3, 1)])
    rows = []
    for _ in range(rng.randint(2, 5)):
        length = rng.choice([1, 1, rng.randint(2, 40)])
        rows.append((length, length + rng.choice([0, rng.randint(1, 90)])))
    page, dtype = rng.choice([8, 16, 32, 64]), rng.choice([FLOAT, HALF, BRAIN])
    case = Case(f"random {seed}", kv_heads * group, kv_heads, 64, page, dtype, tuple(rows), seed=seed)
    check(case, backend_for(case), CPU)


@pytest.mark.parametrize("dtype", [FLOAT, BRAIN, HALF])
def test_long_contexts_are_split_and_joined(dtype):
    rows = ((1, 400), (1, 20), (9, 300))
    case = Case("splits", 4, 2, 64, 16, dtype, rows, seed=3)
    tuning = replace(SMALL_TILES, processors=16)
    prepared = backend_for(case, tuning).prepare(build(case, CPU).sequences, 16, 4, 2, CPU)
    assert [launch.num_joins for launch in prepared.launches] == [1, 1]
    assert all(launch.num_items > launch.num_joins + 1 for launch in prepared.launches)
    check(case, backend_for(case, tuning), CPU)


def test_more_splits_than_one_turn_of_the_join_takes():
    case = Case("many splits", 2, 1, 64, 16, FLOAT, ((1, 600),), seed=9)
    tuning = Tuning(Tile(16, 16, 4, 2), Tile(32, 16, 4, 2), processors=64, min_split=16)
    prepared = backend_for(case, tuning).prepare(build(case, CPU).sequences, 16, 2, 1, CPU)
    assert prepared.launches[0].num_items > 2 * JOIN_SPLITS
    check(case, backend_for(case, tuning), CPU)


def test_a_split_that_a_tiles_first_tokens_see_nothing_of():
    """The last range begins behind the first tokens of the chunk; there their weight is zero, not 0/0."""
    case = Case("blind rows", 1, 1, 64, 16, FLOAT, ((32, 40),), seed=4)
    tuning = Tuning(Tile(16, 16, 4, 2), Tile(32, 16, 4, 2), processors=64, min_split=16)
    check(case, backend_for(case, tuning), CPU)


def test_sequences_that_share_prefix_pages():
    case = Case("shared", 6, 2, 64, 16, FLOAT, ((1, 50), (7, 45), (1, 40)), shared=2, seed=5)
    check(case, backend_for(case), CPU)


@pytest.mark.parametrize("dtype", [FLOAT, BRAIN])
def test_the_production_tiles(dtype):
    case = Case("production", 3, 1, 64, 16, dtype, ((1, 130), (40, 100), (2, 66)), seed=6)
    check(case, backend_for(case, tuning_for((9, 0), 64, dtype.itemsize, processors=8)), CPU)


def test_the_order_of_sequences_does_not_matter():
    case = Case("order", 2, 1, 64, 16, FLOAT, ((5, 20), (1, 33), (3, 3)), seed=7)
    batch = build(case, CPU)
    backend = backend_for(case)
    out, _ = batch.run(backend)
    turned, _ = replace(batch, sequences=batch.sequences[::-1]).run(backend)
    assert torch.equal(out, turned)


def test_pages_beyond_two_to_the_31_elements():
    """Addresses are computed in 64 bits. The cache is only reserved: a few of its pages are ever touched."""
    page_elements = 16 * 64
    blocks = 2**31 // page_elements + 8
    kv = KVCache(
        *((torch.empty(blocks, 16, 1, 64, dtype=HALF),) for _ in range(2)),
        16,
    )
    table = (blocks - 1, blocks - 5)
    kv.keys[0][list(table)] = kv.values[0][list(table)] = 0
    case = Case("far", 2, 1, 64, 16, HALF, ((20, 20),), seed=8)
    near = build(case, CPU)
    expected, near_kv = near.run(backend_for(case))
    slots = torch.tensor([table[i // 16] * 16 + i % 16 for i in range(20)])
    sequences = (Sequence(0, 20, 20, table),)
    backend = backend_for(case)
    step = StepMetadata(kv, backend, sequences, slots, backend.prepare(sequences, 16, 2, 1, CPU))
    out = backend.attend(0, near.query, near.key, near.value, near.scale, step)
    assert error(out, expected) <= TOLERANCE[HALF]
    assert torch.equal(kv.keys[0].flatten(0, 1)[slots], near_kv.keys[0].flatten(0, 1)[near.slots])


def test_warming_up_runs_every_kernel(monkeypatch):
    from vlm_engine.attention import triton_kernels

    ran = []
    for name in ("write_kv", "attend", "join_splits"):
        kernel = getattr(triton_kernels, name)
        monkeypatch.setattr(triton_kernels, name, _Recorder(kernel, name, ran))
    TritonBackend(AttentionShape(6, 2, 80, 16, HALF), CPU, SMALL_TILES).warm_up()
    assert sorted(ran) == ["attend 16", "attend 32", "join_splits 16", "write_kv"]


class _Recorder:
    """Notes which kernel ran with which tile, and runs it."""

    def __init__(self, kernel, name: str, ran: list[str]) -> None:
        self._kernel, self._name, self._ran = kernel, name, ran

    def __getitem__(self, grid):
        def launch(*args, **options):
            self._ran.append(f"{self._name} {options['ROWS']}" if "ROWS" in options else self._name)
            return self._kernel[grid](*args, **options)

        return launch


def test_the_engine_gives_the_torch_backends_tokens(checkpoint):
    """Greedy requests, chunked; the later two start on a prefix hit and mix prefill chunks with decodes."""
    from tests.golden.harness import Harness, user

    harness = Harness(checkpoint("text"))
    texts = ["Who walks by the door in a red coat?", "Who walks by the door? And where to?", "Who walks by the dog?"]
    tokens = {}
    for name in ("torch", "triton"):
        core = harness.core(attention_backend=name, max_num_batched_tokens=12, max_num_seqs=4, block_size=8)
        assert core.runner.backend.name == name
        jobs = [harness.greedy(user(text), 4, name=f"{name} {text}") for text in texts]
        harness.run(core, jobs[0])
        harness.run(core, *jobs[1:])
        assert jobs[1].finish.num_cached_tokens >= 8
        tokens[name] = [job.tokens() for job in jobs]
    assert all(len(row) == 4 for row in tokens["torch"])
    assert tokens["triton"] == tokens["torch"]
