"""Section "kernels": the Triton backend against dense float64 attention and the torch backend, on the device."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from benchmarks.attention_cases import TOLERANCE, Batch, Case, build, check, error
from benchmarks.gpu_check import Section
from vlm_engine.attention import KVCache, Sequence, StepMetadata
from vlm_engine.attention.triton_backend import AttentionShape, TritonBackend
from vlm_engine.attention.triton_work import Tile, Tuning

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
GROUPS, HEAD_DIMS, PAGES = (1, 2, 3, 4, 7), (64, 80, 96, 128), (16, 32, 64)
SMOKE_TILES = Tuning(Tile(16, 32, 4, 2), Tile(32, 32, 4, 2), processors=4, min_split=64)


def run(section: Section) -> None:
    """Fills the section: the largest error per dtype, and what was checked."""
    device = torch.device(section.device)
    for check_one in (_properties, _far_pages):
        if section.has_time(check_one.__name__):
            check_one(section, device)
    worst: dict[str, float] = {}
    passed = 0
    for case in cases(section.on_gpu):
        if not section.has_time(case.name):
            continue
        try:
            found = check(case, backend_for(case, device), device)
        except AssertionError as failure:
            section.failures.append(str(failure))
            continue
        name = str(case.dtype).removeprefix("torch.")
        worst[name] = max(worst.get(name, 0.0), found)
        passed += 1
    section.results |= {"cases_passed": passed, "largest_error": worst}


def cases(on_gpu: bool) -> list[Case]:
    """Random ragged batches over groups, head sizes, pages and dtypes; any 15 of them in a row have all of each."""
    found = []
    rng = random.Random(0)
    for number in range(60 if on_gpu else 3):
        group, head_dim, page = GROUPS[number % 5], HEAD_DIMS[(number + number // 20) % 4], PAGES[number % 3]
        dtype = DTYPES[(number + number // 3) % 3]
        rows = [(1, page), (1, page + 1), (1, 1), (page + 1, page + 1), (4, page + 3)]
        if on_gpu:
            rows += [(1, rng.randint(3000, 20_000)), (rng.randint(17, 300), 0), (rng.randint(2, 40), 0)]
            rows += [(1, rng.randint(1, 3000)) for _ in range(rng.randint(0, 24))]
            rows = [(length, context or length + rng.randint(0, 6000)) for length, context in rows]
            rng.shuffle(rows)
        kv_heads = rng.choice([1, 2, 4, 8]) if on_gpu else 1
        name = f"{group * kv_heads}/{kv_heads} heads of {head_dim}, pages of {page}, {dtype}"
        found.append(Case(name, group * kv_heads, kv_heads, head_dim, page, dtype, tuple(rows), seed=number))
    return found


def backend_for(case: Case, device: torch.device) -> TritonBackend:
    """With the device's own tuning; small tiles in the interpreter."""
    shape = AttentionShape(case.heads, case.kv_heads, case.head_dim, case.block_size, case.dtype)
    return TritonBackend(shape, device, None if device.type == "cuda" else SMOKE_TILES)


def _properties(section: Section, device: torch.device) -> None:
    """Two runs give the same bits; nothing waits for the device; a captured graph replays to the same output."""
    rows = ((1, 9000), (1, 30), (64, 2000)) if section.on_gpu else ((1, 150), (5, 20))
    case = Case("properties", 8, 2, 128, 16, torch.float16, rows, seed=1)
    backend = backend_for(case, device)
    batch = build(case, device)
    first, _ = batch.run(backend)
    again, _ = batch.run(backend)
    if not torch.equal(first, again):
        section.failures.append("two runs of one batch differ")
    if not section.on_gpu:
        return
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch.run(backend)
    except RuntimeError as waited:
        section.failures.append(f"a step waits for the device: {waited}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    _replay(section, batch, backend, first)
    section.results["properties"] = "same bits twice, no synchronisation, captured in a graph"


def _replay(section: Section, batch: Batch, backend: TritonBackend, expected: torch.Tensor) -> None:
    kv = replace(batch.kv, keys=(batch.kv.keys[0].clone(),), values=(batch.kv.values[0].clone(),))
    heads, kv_heads = batch.query.shape[1], batch.key.shape[1]
    prepared = backend.prepare(batch.sequences, kv.block_size, heads, kv_heads, batch.query.device)
    step = StepMetadata(kv, backend, batch.sequences, batch.slots, prepared)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = backend.attend(0, batch.query, batch.key, batch.value, batch.scale, step)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    if not torch.equal(out, expected):
        section.failures.append("a captured step replays to another output")


def _far_pages(section: Section, device: torch.device) -> None:
    """Pages beyond 2^31 elements, where 32-bit addresses would wrap."""
    blocks = 2**31 // (16 * 2 * 64) + 8
    if section.on_gpu and torch.cuda.mem_get_info(device)[0] < 12 * 2**30:
        section.skipped.append("pages beyond 2^31 elements: needs 12 GiB of free device memory")
        return
    case = Case("far pages", 6, 2, 64, 16, torch.float16, ((40, 40),), seed=2)
    backend = backend_for(case, device)
    near = build(case, device)
    expected, _ = near.run(backend)
    pages = [torch.empty(blocks, 16, 2, 64, dtype=case.dtype, device=device) for _ in range(2)]
    table = (blocks - 1, blocks - 5, blocks - 3)
    for page in table:
        for tensor in pages:
            tensor[page] = 0
    sequences = (Sequence(0, 40, 40, table),)
    slots = torch.tensor([table[i // 16] * 16 + i % 16 for i in range(40)], device=device)
    prepared = backend.prepare(sequences, 16, 6, 2, device)
    step = StepMetadata(KVCache((pages[0],), (pages[1],), 16), backend, sequences, slots, prepared)
    out = backend.attend(0, near.query, near.key, near.value, near.scale, step)
    if not error(out, expected) <= TOLERANCE[case.dtype]:
        section.failures.append("pages beyond 2^31 elements: wrong output")
    section.results["far_pages"] = f"page {blocks - 1} of {16 * 2 * 64} elements"
