"""Attention of the torch backend on a CPU.

    python -m benchmarks.attention_cpu [--only decodes|chunks] [--out benchmarks/results/attention_cpu.json]

Decodes in buckets of like length, each length alone, or all padded alike; chunks of a prompt behind a long prefix whose
pages lie scattered (gathered) or follow one another (read where they lie). Milliseconds of one layer (cache write,
gather, attention) in SmolLM2-135M's shape: 9 query heads, 3 KV heads of 64. Ratios within one run are what counts; run
it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from vlm_engine import attention
from vlm_engine.attention import KVCache, StepMetadata
from vlm_engine.attention.torch_backend import PADDING, TorchBackend

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
SCENES = {
    "one long, seven short (6000 + 7 x 200)": [6000] + [200] * 7,
    "eight chats of 200 to 400": [200, 228, 257, 285, 314, 342, 371, 400],
    "thirty-two of 50 to 1,000": [50 + 30 * i for i in range(32)],
    "four of 1,000": [1000, 1001, 1002, 1003],
}
STRATEGIES = {"buckets, a quarter of padding": 1.25, "each length alone": 1.0, "all padded to the longest": 1e9}


CHUNKS = [(prefix, new) for prefix in (2048, 6000) for new in (4, 16, 64)]


def measure(
    shapes: Sequence[tuple[int, int]], padding: float, dtype: torch.dtype, scattered: bool = True, repeats: int = 30
) -> tuple[float, float]:
    """Median and least milliseconds of one layer of a step with (context, new tokens) of each sequence."""
    blocks = [-(-context // BLOCK) for context, _ in shapes]
    pages = list(range(sum(blocks)))[::-1]
    if scattered:
        random.Random(0).shuffle(pages)
    kv = KVCache.allocate(1, len(pages), BLOCK, KV_HEADS, HEAD_DIM, dtype, torch.device("cpu"))
    sequences: list[attention.Sequence] = []
    slots: list[int] = []
    for (context, new), count in zip(shapes, blocks, strict=True):
        own = tuple(pages.pop() for _ in range(count))
        sequences.append(attention.Sequence(len(slots), new, context, own))
        slots += [own[at // BLOCK] * BLOCK + at % BLOCK for at in range(context - new, context)]
    backend = TorchBackend(dtype, padding)
    prepared = backend.prepare(tuple(sequences), BLOCK, HEADS, KV_HEADS, torch.device("cpu"))
    step = StepMetadata(kv, backend, tuple(sequences), torch.tensor(slots), prepared)
    query = torch.randn(len(slots), HEADS, HEAD_DIM).to(dtype)
    key, value = (torch.randn(len(slots), KV_HEADS, HEAD_DIM).to(dtype) for _ in range(2))
    times = []
    for _ in range(repeats + 5):
        begun = time.perf_counter()
        backend.attend(0, query, key, value, HEAD_DIM**-0.5, step)
        times.append(1000 * (time.perf_counter() - begun))
    return median(times[5:]), min(times)


def decodes(dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Each scene with each way to batch decodes."""
    for scene, lengths in SCENES.items():
        shapes = [(length, 1) for length in lengths]
        ms = {name: round(measure(shapes, padding, dtype)[0], 3) for name, padding in STRATEGIES.items()}
        yield {"scene": scene, "ms": ms}


def chunks(dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """One chunk behind a prefix; ``least`` is what remains of a machine that does other things too."""
    for prefix, new in CHUNKS:
        ms, least = {}, {}
        for name, scattered in (("scattered pages", True), ("consecutive pages", False)):
            middle, lowest = measure([(prefix + new, new)], PADDING, dtype, scattered)
            ms[name], least[name] = round(middle, 3), round(lowest, 3)
        yield {"scene": f"chunk of {new} behind {prefix}", "ms": ms, "least_ms": least}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/attention_cpu.json"))
    parser.add_argument("--only", choices=("decodes", "chunks"), help="measure these; the file keeps the others")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    parts = {"decodes": decodes, "chunks": chunks}
    with torch.inference_mode():
        for name in [options.only] if options.only else parts:
            kept[name] = []
            for dtype in (torch.bfloat16, torch.float32):
                for result in parts[name](dtype):
                    kept[name].append({"dtype": str(dtype).removeprefix("torch."), **result})
                    shown = "  ".join(f"{n}: {v:.2f}" for n, v in result["ms"].items())
                    print(f"{kept[name][-1]['dtype']:9} {result['scene']:42} {shown}", flush=True)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": platform.processor()}
    options.out.write_text(json.dumps({**kept, **record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
