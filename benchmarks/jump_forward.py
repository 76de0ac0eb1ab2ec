"""What is gained where a grammar's forced text is computed at once and not token by token?

    python -m benchmarks.jump_forward --model nano --out benchmarks/results/jump_forward.json

The engine describes pictures of the demo's clip in the describer's default JSON while a chat streams: token by token
as other engines do it; with jump-forward and white space as the model likes; and with jump-forward on one line, as the
describer asks for it. One picture at a time, and three at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import cv2

from ingest.demo_camera.clip import PhotoClip
from pipeline.config.engine import DEFAULT_PROMPT, DEFAULT_SYSTEM_PROMPT
from pipeline.config.output_schema import DEFAULT_OUTPUT_SCHEMA
from pipeline.models.ready import make_ready
from pipeline.prompts import STRUCTURE
from vlm_engine import EngineConfig, PriorityClass, SamplingParams, StructuredOutput, VLMEngine

WAYS = (
    ("token by token", False, False),
    ("jump-forward, white space as the model likes", True, False),
    ("jump-forward, one line", True, True),
)
STORY: list[Any] = [{"role": "user", "content": "Tell me a long story about the sea."}]


def pictures(count: int) -> list[bytes]:
    """JPEGs of the demo's clip, from one end to the other, in which nobody may be."""
    clip = PhotoClip()
    frames = (clip.picture((number + 0.5) * clip.duration / count) for number in range(count))
    return [cv2.imencode(".jpg", frame)[1].tobytes() for frame in frames]


def messages(jpeg: bytes) -> list[Any]:
    """As the describer asks about a crop."""
    outline = json.dumps(DEFAULT_OUTPUT_SCHEMA, ensure_ascii=False, separators=(",", ":"))
    asked = [{"type": "image", "image": jpeg}, {"type": "text", "text": DEFAULT_PROMPT}]
    system = f"{DEFAULT_SYSTEM_PROMPT}\n\n{STRUCTURE}\n{outline}"
    return [{"role": "system", "content": system}, {"role": "user", "content": asked}]


async def describe(engine: VLMEngine, jpeg: bytes, one_line: bool) -> tuple[float, int]:
    """Seconds to the last word, and tokens of the answer."""
    structured = StructuredOutput("json_schema", json.dumps(DEFAULT_OUTPUT_SCHEMA), one_line=one_line)
    params = SamplingParams(temperature=0.0, max_tokens=300, structured=structured)
    began, tokens = time.monotonic(), 0
    background = PriorityClass.BACKGROUND
    async for piece in engine.generate(messages(jpeg), params, priority_class=background):  # type: ignore[arg-type]
        tokens = piece.num_output_tokens
    return time.monotonic() - began, tokens


async def chat(engine: VLMEngine, gaps: list[float]) -> None:
    """One story after another; the seconds between two pieces."""
    while True:
        params, before = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True), None
        async for _ in engine.generate(STORY, params):
            now = time.monotonic()
            if before is not None:
                gaps.append(now - before)
            before = now


async def measure(engine: VLMEngine, jpegs: list[bytes], one_line: bool, at_once: int) -> dict[str, Any]:
    """Describes all pictures, ``at_once`` at a time, beside the chat."""
    gaps: list[float] = []
    forced = engine.metrics.value("jump_forward_tokens")
    talking = asyncio.create_task(chat(engine, gaps))
    found: list[tuple[float, int]] = []
    for start in range(0, len(jpegs), at_once):
        group = jpegs[start : start + at_once]
        found += await asyncio.gather(*(describe(engine, jpeg, one_line) for jpeg in group))
    talking.cancel()
    await asyncio.gather(talking, return_exceptions=True)
    seconds = sorted(took for took, _ in found)
    tokens = sum(count for _, count in found)
    return {
        "at_once": at_once,
        "tokens_per_answer": round(tokens / len(found), 1),
        "forced_per_answer": round((engine.metrics.value("jump_forward_tokens") - forced) / len(found), 1),
        "seconds": {"p50": round(statistics.median(seconds), 2), "max": round(seconds[-1], 2)},
        "chat_gap_ms": {
            "p50": round(1000 * statistics.median(gaps), 1),
            "p99": round(1000 * sorted(gaps)[int(0.99 * len(gaps))], 1),
        },
    }


async def compare(model: str, count: int) -> list[dict[str, Any]]:
    """All ways, with engines of their own; a few pictures first, which nobody counts."""
    jpegs, rows = pictures(count), []
    for name, jumps, one_line in WAYS:
        engine = VLMEngine(EngineConfig(model=model, kv_cache_memory=1 << 28, jump_forward=jumps))
        engine.start()
        try:
            await asyncio.gather(*(describe(engine, jpeg, one_line) for jpeg in jpegs[:3]))
            for at_once in (1, 3):
                rows.append({"way": name, **await measure(engine, jpegs, one_line, at_once)})
                print(json.dumps(rows[-1]), flush=True)
        finally:
            engine.shutdown()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="preset, hub id or folder (default nano)")
    parser.add_argument("--count", type=int, default=12, help="pictures (default 12)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = asyncio.run(compare(make_ready(options.model, lambda text, done: None), options.count))
    how = f"{options.model}; {options.count} pictures of the demo's clip; a chat streams; {os.cpu_count()} cores"
    options.out.write_text(json.dumps({"how": how, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
