"""The demo as on a machine without internet, while a chat streams: how long from a frame to its stored words?

    python -m benchmarks.offline_demo --seconds 120 --out benchmarks/results/offline_demo.json

Starts ``watchword demo`` with a new home and empty caches, without hub and downloads, and keeps one chat streaming. How
long descriptions took, from the crop's arrival in the queue and from its frame (which for a best shot is long before),
comes from the describer's own metrics, looked at so often that each one is told apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

LOOK_S = 0.1
SETTLE_S = 6.0
"""Those who were seen while the model was still loading are described first, and not counted."""
STARTS_S = 120.0
TIMES = re.compile(r"^watchword_describer_(stored|queued)_seconds_(sum|count) (\S+)$", re.MULTILINE)


class Chat:
    """One chat after another until it is stopped; the time of every piece of text."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._stopped = threading.Event()
        self.times: list[list[float]] = []
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        body = {
            "model": "nano",
            "messages": [{"role": "user", "content": "Tell me a long story about the sea."}],
            "max_tokens": 300,
            "stream": True,
            "ignore_eos": True,
        }
        while not self._stopped.is_set():
            self.times.append([])
            with httpx.stream("POST", f"{self._base}/chat/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        self.times[-1].append(time.monotonic())
                    if self._stopped.is_set():
                        break

    def stop(self) -> list[float]:
        """Seconds between two pieces of one answer."""
        self._stopped.set()
        self._thread.join(30)
        return [b - a for times in self.times for a, b in itertools.pairwise(times)]


def times_of(metrics: str) -> dict[str, tuple[float, int]]:
    """Sum and number of the descriptions' times so far, since the frame and since the queue."""
    found = {(kind, part): float(value) for kind, part, value in TIMES.findall(metrics)}
    return {kind: (found[kind, "sum"], int(found[kind, "count"])) for kind in ("stored", "queued")}


def summary(seconds: list[float]) -> dict[str, Any]:
    """Of the descriptions' times."""
    return {
        "p50": round(statistics.median(seconds), 2),
        "p90": round(sorted(seconds)[int(0.9 * len(seconds))], 2),
        "max": round(max(seconds), 2),
        "within_3_s": sum(age <= 3.0 for age in seconds),
    }


def run(seconds: float) -> dict[str, Any]:
    """Starts the demo, listens, ends it."""
    with tempfile.TemporaryDirectory() as home:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        environ = kept | {"HOME": home, "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true"}
        lines: list[str] = []
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", "demo"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as demo:
            reader = threading.Thread(target=lambda: lines.extend(iter(demo.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
            reader.start()
            try:
                found = _measure(lines, began, seconds) | {"ended": _end(demo)}
                return found | {"said": [line.rstrip().replace(home, "~") for line in lines]}
            finally:
                demo.kill()


def _measure(lines: list[str], began: float, seconds: float) -> dict[str, Any]:
    base = _said(lines, r"OpenAI base URL: (\S+)", began)
    root = base.removesuffix("/v1")
    _said(lines, r"(person seen)", began)
    people_after = time.monotonic() - began
    _said(lines, r": (description)", began)
    words_after = time.monotonic() - began
    chat = Chat(base)
    time.sleep(SETTLE_S)
    found: dict[str, list[float]] = {"stored": [], "queued": []}
    before = times_of(httpx.get(f"{root}/metrics", timeout=10).text)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        now = times_of(httpx.get(f"{root}/metrics", timeout=10).text)
        for kind, (total, count) in now.items():
            more = count - before[kind][1]
            found[kind] += [(total - before[kind][0]) / more] * more if more else []
        before = now
    gaps = sorted(chat.stop())
    return {
        "how": f"watchword demo, new home, no hub or downloads; a chat streams; {seconds:g} s; {os.cpu_count()} cores",
        "first_person_after_s": round(people_after, 1),
        "first_words_after_s": round(words_after, 1),
        "descriptions": len(found["queued"]),
        "crop_to_stored_words_s": summary(found["queued"]),
        "frame_to_stored_words_s": summary(found["stored"]),
        "chat_gap_ms": {
            "p50": round(1000 * statistics.median(gaps), 1),
            "p99": round(1000 * gaps[int(0.99 * len(gaps))], 1),
            "max": round(1000 * gaps[-1], 1),
        },
    }


def _said(lines: list[str], pattern: str, began: float) -> str:
    while time.monotonic() - began < STARTS_S:
        for line in list(lines):
            if found := re.search(pattern, line):
                return found[1]
        time.sleep(0.05)
    raise TimeoutError(f"{pattern!r} was not said:\n{''.join(lines)}")


def _end(demo: subprocess.Popen[str]) -> dict[str, Any]:
    began = time.monotonic()
    demo.send_signal(signal.SIGINT)
    return {"status": demo.wait(30), "after_s": round(time.monotonic() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/offline_demo.json"))
    options = parser.parse_args()
    result = run(options.seconds)
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
