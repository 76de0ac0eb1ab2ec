"""What a burst does: running chat streams alone, then beside many times as many requests at once as the server takes.

    python -m benchmarks.burst --base-url http://127.0.0.1:8000/v1 --model NAME --capacity 20 --out results/burst.json

``--capacity`` is what the server runs and queues at once (engine.max_num_seqs + engine.max_queued_requests); the burst
is ``--times`` as many requests, all sent in the same moment. Written are the statuses of the burst's answers (200 and
429 are right; a 429 must have Retry-After), the gaps between the running streams' tokens alone and during the burst
(p50, p90, p99, max in milliseconds), and their ratios, and how long the engine's own steps were meanwhile. The time
alone is cut into windows as long as the burst, of which the median one counts: a longer time has more of the rare gaps,
and its p99 leaves more of them out. It is done
``--repeats`` times: one slow step is a hundredth of a burst's gaps, so one run's p99 says little; the median counts.

The burst is sent by a process of its own with the least priority: hundreds of connections made in one event loop would
hold up the streams read there, and clients are elsewhere in earnest. Processor time that it takes from a server on the
same machine is in the numbers nevertheless.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import socket
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

RETRY_S = 0.1
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Streams:
    """Chats that stream for as long as they are wanted; every gap between two tokens is noted."""

    def __init__(self, client: httpx.AsyncClient, model: str, count: int, tokens: int) -> None:
        self._client = client
        self._model = model
        self._tokens = tokens
        self.gaps: list[tuple[float, float]] = []
        self._tasks = [asyncio.create_task(self._chat(number)) for number in range(count)]

    async def _chat(self, number: int) -> None:
        turn = 0
        while True:
            turn += 1
            body = question(self._model, f"Tell me a long story, number {number}, part {turn}.", self._tokens)
            async with self._client.stream("POST", "/chat/completions", json={**body, "stream": True}) as response:
                if response.status_code == 429:  # the burst was faster; the story goes on later
                    await asyncio.sleep(RETRY_S)
                    continue
                response.raise_for_status()
                last: float | None = None
                async for line in response.aiter_lines():
                    if not line.startswith("data: {") or not has_text(line):
                        continue
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append((now, now - last))
                    last = now

    def between(self, start: float, end: float) -> list[float]:
        """Gaps that ended in a span of the monotonic clock, ascending, in seconds."""
        return sorted(gap for at, gap in self.gaps if start <= at < end)

    async def stop(self) -> None:
        """Ends the chats. Raises what one of them failed with."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def question(model: str, text: str, tokens: int) -> dict[str, Any]:
    """A greedy chat of exactly so many tokens."""
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}


def has_text(line: str) -> bool:
    """Whether a data line holds text; the role chunk and the end hold none."""
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return bool(choices and choices[0]["delta"].get("content"))


def send_burst(base_url: str, api_key: str, model: str, count: int, tokens: int) -> Counter[str]:
    """All at once; gives how often each status came. A 429 without Retry-After counts as another.

    Plain sockets in one selector: a client library spends milliseconds of processor time on each request, which the
    server on the same machine would lack.
    """
    url = httpx.URL(base_url)
    host, port = url.host, url.port or 80
    head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {api_key}\r\n"
    waiting, answers = selectors.DefaultSelector(), list[bytes]()
    for number in range(count):
        body = json.dumps(question(model, f"Say {number}.", tokens)).encode()
        about = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((host, port))
        waiting.register(connection, selectors.EVENT_WRITE, [about.encode() + body, b""])
    while waiting.get_map():
        for key, _ in waiting.select():
            connection = key.fileobj  # type: ignore[assignment]
            if key.events == selectors.EVENT_WRITE:
                connection.sendall(key.data[0])  # shorter than any send buffer
                waiting.modify(connection, selectors.EVENT_READ, key.data)
            elif piece := connection.recv(65536):
                key.data[1] += piece
            else:
                answers.append(key.data[1])
                waiting.unregister(connection)
                connection.close()
    return Counter(_status_of(answer) for answer in answers)


def _status_of(answer: bytes) -> str:
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1").lower()
    status = head.split(" ", 2)[1] if head.startswith("http/1.1 ") else "nothing"
    return f"{status} without Retry-After" if status == "429" and "\nretry-after:" not in head else status


def summary(gaps: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    return {name: round(1000 * gaps[min(int(len(gaps) * share), len(gaps) - 1)], 1) for name, share in SHARES.items()}


def windows(streams: Streams, start: float, end: float, length: float) -> list[list[float]]:
    """The gaps of a span, cut into pieces of that length; one piece where the span is shorter."""
    count = max(1, int((end - start) / length))
    length = min(length, end - start)
    pieces = [streams.between(start + length * index, start + length * (index + 1)) for index in range(count)]
    return [piece for piece in pieces if piece]


class Sender:
    """The burst's process. It waits, ready, until it is told to send."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, options: argparse.Namespace, count: int) -> Sender:
        """Returns once the process has loaded what it needs."""
        about = {name: getattr(options, name) for name in ("base_url", "api_key", "model", "burst_tokens")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from benchmarks.burst import send_when_told; send_when_told()"),
            cwd=Path(__file__).resolve().parents[1],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        sender = cls(process)
        await sender._say({**about, "count": count})
        await sender._hear()
        return sender

    async def send(self) -> Counter[str]:
        """Sends the burst; gives how often each status came, once all have."""
        await self._say({})
        statuses: Counter[str] = Counter(await self._hear())
        await self._process.wait()
        return statuses

    async def _say(self, message: dict[str, Any]) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()

    async def _hear(self) -> Any:
        line = await self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise SystemExit("the process that sends the burst has ended early")
        return json.loads(line)


def send_when_told() -> None:
    """What the burst's process runs: settings, then a word to begin, come in as lines; statuses go out as one."""
    os.nice(19)
    about = json.loads(sys.stdin.readline())
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()

    names = ("base_url", "api_key", "model", "count", "burst_tokens")
    print(json.dumps(send_burst(*(about[name] for name in names))), flush=True)


def http_client(base_url: str, api_key: str) -> httpx.AsyncClient:
    """As many connections as it takes, none used twice."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"Authorization": f"Bearer {api_key}"}
    return httpx.AsyncClient(base_url=base_url, headers=headers, timeout=600, limits=limits)


async def step_ms(client: httpx.AsyncClient, start: float, end: float) -> dict[str, float]:
    """How long the engine's steps with decodes were in a span of the monotonic clock; empty for servers not ours.

    The span is this machine's clock: for a server elsewhere it says nothing and is empty too.
    """
    response = await client.get(str(client.base_url.join("/api/engine/steps")))
    if response.status_code != 200:
        return {}
    steps = response.json()
    records = steps["steps"] if isinstance(steps, dict) else steps
    seconds = sorted(r["seconds"] for r in records if r["decode_tokens"] and start <= r["started"] < end)
    return {**summary(seconds), "steps": len(seconds)} if seconds else {}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Alone for some seconds, then the burst until its last answer."""
    count = options.times * options.capacity
    async with http_client(options.base_url, options.api_key) as client:
        sender = await Sender.start(options, count)
        streams = Streams(client, options.model, options.streams, options.tokens)
        await asyncio.sleep(options.warm_up)
        alone_from = time.monotonic()
        await asyncio.sleep(options.seconds)
        burst_from = time.monotonic()
        statuses = await sender.send()
        burst_to = time.monotonic()
        await streams.stop()
        steps = await step_ms(client, alone_from, burst_from), await step_ms(client, burst_from, burst_to)
    alone = windows(streams, alone_from, burst_from, burst_to - burst_from)
    beside = streams.between(burst_from, burst_to)
    if not alone or not beside:
        raise SystemExit("the streams had no tokens in one of the phases; take more seconds or burst tokens")
    each, second = [summary(window) for window in alone], summary(beside)
    first = {name: statistics.median(window[name] for window in each) for name in SHARES}
    return {
        "burst": {
            "requests": count,
            "statuses": dict(sorted(statuses.items())),
            "seconds": round(burst_to - burst_from, 2),
        },
        "gap_ms_alone": {**first, "gaps": round(statistics.mean(len(window) for window in alone))},
        "gap_ms_alone_windows": each,
        "gap_ms_burst": {**second, "gaps": len(beside)},
        "step_ms_alone": steps[0],
        "step_ms_burst": steps[1],
        "ratio": {name: round(second[name] / first[name], 2) for name in SHARES if first[name]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--model", required=True)
    parser.add_argument("--capacity", type=int, required=True, help="requests that the server runs and queues at once")
    parser.add_argument("--times", type=int, default=10, help="the burst is so many times the capacity")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer of the running streams")
    parser.add_argument("--burst-tokens", type=int, default=16)
    parser.add_argument("--warm-up", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the phase alone")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/burst.json"))
    options = parser.parse_args()
    runs = [asyncio.run(measure(options)) for _ in range(options.repeats)]
    middle = {name: round(statistics.median(run["ratio"][name] for run in runs), 2) for name in SHARES}
    result = {"median_ratio": middle, "runs": runs}
    settings = {name: value for name, value in vars(options).items() if name not in ("api_key", "out")}
    options.out.write_text(json.dumps({"settings": settings, **result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
