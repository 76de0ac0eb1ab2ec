"""Decode attention of the torch backend on a CPU: buckets of like length, each length alone, or all padded alike.

    python -m benchmarks.attention_cpu [--out benchmarks/results/attention_cpu.json]

Milliseconds of one layer (cache write, gather, attention) in SmolLM2-135M's shape: 9 query heads, 3 KV heads of 64.
Ratios within one run are what counts; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from pathlib import Path
from statistics import median

import torch

from vlm_engine.attention import KVCache, Sequence, StepMetadata
from vlm_engine.attention.torch_backend import TorchBackend

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
SCENES = {
    "one long, seven short (6000 + 7 x 200)": [6000] + [200] * 7,
    "eight chats of 200 to 400": [200, 228, 257, 285, 314, 342, 371, 400],
    "thirty-two of 50 to 1,000": [50 + 30 * i for i in range(32)],
    "four of 1,000": [1000, 1001, 1002, 1003],
}
STRATEGIES = {"buckets, a quarter of padding": 1.25, "each length alone": 1.0, "all padded to the longest": 1e9}


def measure(lengths: list[int], padding: float, dtype: torch.dtype, repeats: int = 30) -> float:
    """Median milliseconds of one layer of a decode step."""
    blocks = [-(-length // BLOCK) for length in lengths]
    pages = list(range(sum(blocks)))
    random.Random(0).shuffle(pages)
    kv = KVCache.allocate(1, len(pages), BLOCK, KV_HEADS, HEAD_DIM, dtype, torch.device("cpu"))
    sequences = tuple(
        Sequence(row, 1, length, tuple(pages.pop() for _ in range(count)))
        for row, (length, count) in enumerate(zip(lengths, blocks, strict=True))
    )
    last = [s.blocks[(s.context - 1) // BLOCK] * BLOCK + (s.context - 1) % BLOCK for s in sequences]
    backend = TorchBackend(dtype, padding)
    prepared = backend.prepare(sequences, BLOCK, HEADS, KV_HEADS, torch.device("cpu"))
    step = StepMetadata(kv, backend, sequences, torch.tensor(last), prepared)
    query = torch.randn(len(lengths), HEADS, HEAD_DIM).to(dtype)
    key, value = (torch.randn(len(lengths), KV_HEADS, HEAD_DIM).to(dtype) for _ in range(2))
    times = []
    for _ in range(repeats + 5):
        begun = time.perf_counter()
        backend.attend(0, query, key, value, HEAD_DIM**-0.5, step)
        times.append(1000 * (time.perf_counter() - begun))
    return median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/attention_cpu.json"))
    options = parser.parse_args()
    results = []
    with torch.inference_mode():
        for dtype in (torch.bfloat16, torch.float32):
            for scene, lengths in SCENES.items():
                ms = {name: round(measure(lengths, padding, dtype), 3) for name, padding in STRATEGIES.items()}
                results.append({"scene": scene, "dtype": str(dtype).removeprefix("torch."), "ms": ms})
                print(f"{results[-1]['dtype']:9} {scene:42} " + "  ".join(f"{n}: {v:.2f}" for n, v in ms.items()))
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": platform.processor()}
    options.out.write_text(json.dumps({**record, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
