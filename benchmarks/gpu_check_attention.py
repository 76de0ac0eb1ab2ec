"""Section "attention": one layer's attention timed: decodes, prefill chunks, a mixed batch, and other tiles.

Times are medians with a cold L2 cache (``triton.testing.do_bench``), the cache write included. Beside them stand the
torch backend on the same pages, and torch's SDPA over K and V that already lie dense and repeated: a bound that no
paged backend in torch can reach, since it neither gathers nor writes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_check import Section
from benchmarks.gpu_check_kernels import SMOKE_TILES
from vlm_engine.attention import AttentionBackend, KVCache, Sequence, StepMetadata
from vlm_engine.attention.torch_backend import TorchBackend
from vlm_engine.attention.triton_backend import AttentionShape, TritonBackend
from vlm_engine.attention.triton_work import Tile, Tuning, tuning_for

Rows = tuple[tuple[int, int], ...]
BF16 = torch.bfloat16
SHAPES = {
    "16/8 heads of 128 (Qwen3-VL-2B)": AttentionShape(16, 8, 128, 16, BF16),
    "32/32 heads of 64 (SmolVLM2-2.2B)": AttentionShape(32, 32, 64, 16, BF16),
}
DECODES = [(1, 1024), (1, 32_768), (8, 1024), (8, 8192), (64, 1024), (64, 8192)]
"""(sequences, context)."""
CHUNKS = [(256, 0), (256, 8192), (512, 4096), (2048, 0), (2048, 16_384)]
"""(new tokens, prefix)."""
SMALL_TILES = [(16, 64, 4, 3), (16, 32, 4, 5), (16, 128, 4, 3), (16, 128, 8, 5)]
LARGE_TILES = [(64, 64, 4, 5), (64, 32, 4, 5), (64, 128, 4, 3), (128, 64, 8, 3), (128, 64, 8, 5), (128, 128, 8, 3)]


def run(section: Section) -> None:
    """Fills the section with one record a measurement."""
    device = torch.device(section.device)
    records: list[dict[str, Any]] = []
    section.results["times"] = records
    shapes = SHAPES if section.on_gpu else {"2/1 heads of 64": AttentionShape(2, 1, 64, 16, torch.float32)}
    for name, shape in shapes.items():
        backend = TritonBackend(shape, device, None if section.on_gpu else SMOKE_TILES)
        for label, rows in _points(section.on_gpu):
            if _fits(section, shape, rows, label) and section.has_time(f"{name}, {label}"):
                record = {"shape": name, "step": label} | _measure(shape, rows, backend, device)
                records.append(record)
                print(record, flush=True)
    if section.on_gpu:
        section.results["tiles"] = _sweep(section, SHAPES["16/8 heads of 128 (Qwen3-VL-2B)"], device)


def _points(on_gpu: bool) -> list[tuple[str, Rows]]:
    if not on_gpu:
        return [("2 decodes at 40", ((1, 40),) * 2), ("chunk of 20 behind 30", ((20, 50),))]
    points = [(f"{n} decodes at {context}", ((1, context),) * n) for n, context in DECODES]
    points += [(f"chunk of {new} behind {prefix}", ((new, prefix + new),)) for new, prefix in CHUNKS]
    points.append(("7 decodes at 200 and one at 6000", ((1, 6000), *(((1, 200),) * 7))))
    points.append(("32 decodes at 4096 and a chunk of 512 behind 2048", (*(((1, 4096),) * 32), (512, 2560))))
    return points


def _fits(section: Section, shape: AttentionShape, rows: Rows, label: str) -> bool:
    """Pages, the torch backend's gathered copy and SDPA's repeated one together must leave memory free."""
    if not section.on_gpu:
        return True
    copies = 2 + shape.group
    need = 2 * copies * shape.kv_heads * shape.head_dim * shape.dtype.itemsize * sum(context for _, context in rows)
    if need < 0.7 * torch.cuda.mem_get_info()[0]:
        return True
    section.skipped.append(f"{label}: needs {need / 2**30:.0f} GiB")
    return False


def _measure(shape: AttentionShape, rows: Rows, backend: TritonBackend, device: torch.device) -> dict[str, Any]:
    layer = Layer(shape, rows, device)
    triton_ms = _time(layer.call(backend), device)
    torch_ms = _time(layer.call(TorchBackend(shape.dtype)), device)
    record: dict[str, Any] = {"triton_ms": triton_ms, "torch_backend_ms": torch_ms}
    if len(set(rows)) == 1:
        record["sdpa_dense_ms"] = _time(layer.dense_call(), device)
    moved = 2 * shape.kv_heads * shape.head_dim * shape.dtype.itemsize * sum(context for _, context in rows)
    seen = sum(new * context - new * (new - 1) // 2 for new, context in rows)
    record["kv_gb_per_s"] = round(moved / triton_ms / 1e6, 1)
    record["tflop_per_s"] = round(4 * shape.heads * shape.head_dim * seen / triton_ms / 1e9, 2)
    return record


class Layer:
    """One layer's tensors for a step of the given rows."""

    def __init__(self, shape: AttentionShape, rows: Rows, device: torch.device) -> None:
        size = shape.block_size
        counts = [-(-context // size) for _, context in rows]
        pages = list(range(sum(counts)))
        random.Random(0).shuffle(pages)
        sequences: list[Sequence] = []
        start = 0
        for (new, context), count in zip(rows, counts, strict=True):
            sequences.append(Sequence(start, new, context, tuple(pages.pop() for _ in range(count))))
            start += new
        self.shape, self.rows, self.sequences = shape, rows, tuple(sequences)
        options = {"dtype": shape.dtype, "device": device}
        pool = (sum(counts), size, shape.kv_heads, shape.head_dim)
        self.kv = KVCache((torch.randn(pool, **options),), (torch.randn(pool, **options),), size)
        self.query = torch.randn(start, shape.heads, shape.head_dim, **options)
        self.new = torch.randn(start, shape.kv_heads, shape.head_dim, **options)
        index = [(s, i) for s in sequences for i in range(s.context - s.length, s.context)]
        self.slots = torch.tensor([s.blocks[i // size] * size + i % size for s, i in index], device=device)
        self.scale = shape.head_dim**-0.5

    def call(self, backend: AttentionBackend) -> Callable[[], object]:
        """Attention of one layer; ``prepare`` belongs to the step and is not timed."""
        s = self.shape
        prepared = backend.prepare(self.sequences, s.block_size, s.heads, s.kv_heads, self.query.device)
        step = StepMetadata(self.kv, backend, self.sequences, self.slots, prepared)
        return lambda: backend.attend(0, self.query, self.new, self.new, self.scale, step)

    def dense_call(self) -> Callable[[], object]:
        """SDPA over dense, repeated K and V, for rows that are all alike."""
        (new, context), count, s = self.rows[0], len(self.rows), self.shape
        options = {"dtype": s.dtype, "device": self.query.device}
        k, v = (torch.randn(count, s.heads, context, s.head_dim, **options) for _ in range(2))
        q = torch.randn(count, s.heads, new, s.head_dim, **options)
        bias = causal_lower_right(new, context) if new > 1 else None
        return lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)


def _sweep(section: Section, shape: AttentionShape, device: torch.device) -> list[dict[str, Any]]:
    """Other tiles, and other numbers of splits, at a few steps: what to choose next, measured."""
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    base = tuning_for(capability, shape.head_dim, shape.dtype.itemsize, properties.multi_processor_count)
    tries: list[tuple[str, Tuning]] = [("as built", base)]
    tries += [(f"waves x{f}", replace(base, processors=int(base.processors * f))) for f in (0.5, 2)]
    tries += [(f"small {t}", replace(base, small=Tile(*t))) for t in SMALL_TILES]
    tries += [(f"large {t}", replace(base, large=Tile(*t))) for t in LARGE_TILES]
    decodes = [(f"{n} decodes at {c}", ((1, c),) * n) for n, c in ((1, 32_768), (8, 8192), (64, 1024))]
    chunks = [(f"chunk of {n} behind {p}", ((n, n + p),)) for n, p in ((256, 8192), (2048, 0), (2048, 16_384))]
    layers = {label: Layer(shape, rows, device) for label, rows in decodes + chunks}
    records: list[dict[str, Any]] = []
    for name, tuning in tries:
        if not section.has_time(f"tiles {name}", need=6.0):
            continue
        record: dict[str, Any] = {"tuning": name}
        labels = [
            label for label, _ in (decodes if "small" in name else chunks if "large" in name else decodes + chunks)
        ]
        try:
            backend = TritonBackend(shape, device, tuning)
            record |= {label: _time(layers[label].call(backend), device) for label in labels}
        except Exception as error:  # A tile may want more shared memory than this device has: say so, try the next.
            record["error"] = f"{type(error).__name__}: {error}"[:200]
        records.append(record)
        print(record, flush=True)
    return records


def _time(call: Callable[[], object], device: torch.device) -> float:
    """Median milliseconds."""
    if device.type != "cuda":
        started = time.perf_counter()
        call()
        return round(1000 * (time.perf_counter() - started), 3)
    from triton.testing import do_bench

    return round(do_bench(call, warmup=20, rep=80, return_mode="median"), 4)
