"""Does the process answer while pictures are prepared? Health checks beside twenty chats with a 4-megapixel JPEG each.

    python -m benchmarks.liveness --model FOLDER --out benchmarks/results/liveness.json

Starts ``watchword serve --no-cameras`` as a process of its own, asks ``/health/live`` and ``/health`` every 50 ms
from another process, first with nothing else to do, then while all pictures are sent at once and prepared (one tile a
picture, so that little is encoded). A check's time runs from when it was due, so that one late answer also counts for
those that were due meanwhile. With ``--profile`` the server's threads are sampled (py-spy, if installed).
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

PATHS = ("/health/live", "/health")
EVERY_S = 0.05
QUIET_S = 5.0
START_S = 180.0
ANSWER_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="a small checkpoint; tests/checkpoints.py makes one")
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--side", type=int, default=2000, help="pixels; 2000: 4 megapixels")
    parser.add_argument("--rounds", type=int, default=3, help="how often all pictures are sent")
    parser.add_argument("--profile", type=Path, help="py-spy's samples go into this file")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/liveness.json"))
    options = parser.parse_args()
    bodies = [_body(number, options.side) for number in range(options.pictures * options.rounds)]
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder), options.model) as (url, pid):
        with _checks(url) as alone:
            time.sleep(QUIET_S)
        with _profiled(pid, options.profile), _checks(url) as beside:
            took = [
                _send(url, bodies[first : first + options.pictures])
                for first in range(0, len(bodies), options.pictures)
            ]
        prepared = _preprocessing(url)
    report = {
        "settings": {
            "pictures": options.pictures,
            "rounds": options.rounds,
            "megapixels": options.side**2 / 1e6,
            "body_mb": round(len(bodies[0]) / 1e6, 2),
            "every_ms": EVERY_S * 1000,
            "cores": os.cpu_count(),
        },
        "alone": _summary(alone),
        "beside_pictures": _summary(beside),
        "seconds_until_all_were_answered": [round(seconds, 2) for seconds in took],
        "preprocess_seconds_mean": prepared,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def _body(number: int, side: int) -> bytes:
    """A chat with one picture as detailed as a photograph, every one another."""
    grain = Image.effect_noise((side // 3, side // 3), 90).resize((side, side)).convert("RGB")
    grain.putpixel((0, 0), (number % 256, number // 256, 0))
    buffer = io.BytesIO()
    grain.save(buffer, "JPEG", quality=40)
    url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "text", "text": f"What is it? {number}"},
    ]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1}).encode()


@contextmanager
def _server(folder: Path, model: Path) -> Iterator[tuple[str, int]]:
    """Its address and process id, once the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "watchword.yaml"
    engine = {"model": str(model.resolve()), "device": "cpu", "dtype": "float32", "num_threads": 1}
    config.write_text(json.dumps({"engine": engine, "store": {"data_dir": str(folder)}}))
    command = [sys.executable, "-P", "-m", "pipeline.cli", "serve", "--config", str(config), "--no-cameras"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + START_S
            while not _ready(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not start:\n{(folder / 'log').read_text(errors='replace')}")
                time.sleep(0.2)
            yield url, server.pid
        finally:
            server.terminate()
            server.wait()


def _ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200
    return False


def _send(url: str, bodies: list[bytes]) -> float:
    """All at once; seconds until the last was answered."""

    def ask(body: bytes) -> None:
        # Not httpx: making a client reads all certificates, which takes a core from the server just then.
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=ANSWER_S)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"a chat was answered {response.status}: {answer[:500]!r}")

    began = time.monotonic()
    with ThreadPoolExecutor(len(bodies)) as pool:
        list(pool.map(ask, bodies))
    return time.monotonic() - began


@contextmanager
def _checks(url: str) -> Iterator[list[float]]:
    """Health checks in another process meanwhile; their seconds are in the list at the end."""
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.SimpleQueue()
    process = context.Process(target=_check, args=(url, stop, results), daemon=True)
    process.start()
    results.get()  # it has connected
    seconds: list[float] = []
    try:
        yield seconds
    finally:
        stop.set()
        seconds += results.get()
        process.join()


def _check(url: str, stop: Any, results: Any) -> None:
    """A thread a check: one that waits for its answer doesn't hold up the next."""
    address = url.removeprefix("http://")
    seconds: list[float] = []

    def ask(due: float, path: str) -> None:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        taken = time.monotonic() - due
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}")
        seconds.append(taken)

    ask(time.monotonic(), PATHS[0])
    seconds.clear()
    results.put(True)
    threads: list[threading.Thread] = []
    due, number = time.monotonic(), 0
    while not stop.is_set():
        time.sleep(max(0.0, due - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(due, PATHS[number % len(PATHS)])))
        threads[-1].start()
        due, number = due + EVERY_S, number + 1
    for thread in threads:
        thread.join()
    if len(seconds) != len(threads):
        raise RuntimeError(f"{len(threads) - len(seconds)} of {len(threads)} checks failed")
    results.put(seconds)


@contextmanager
def _profiled(pid: int, out: Path | None) -> Iterator[None]:
    if out is None:
        yield
        return
    spy = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    sampling = subprocess.Popen([spy, "record", "--gil", "--pid", str(pid), "-f", "raw", "-r", "500", "-o", str(out)])
    try:
        yield
    finally:
        sampling.send_signal(2)
        sampling.wait()


def _preprocessing(url: str) -> float:
    """Mean seconds of decoding, resizing and normalising a picture, from the server's metrics."""
    lines = [line.split() for line in httpx.get(f"{url}/metrics").text.splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, value, *_ in lines}
    name = "watchword_preprocess_seconds"
    return round(values[f"{name}_sum"] / values[f"{name}_count"], 3)


def _summary(seconds: list[float]) -> dict[str, Any]:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 1)

    return {"checks": len(ordered), "ms": {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1)}}


if __name__ == "__main__":
    main()
