"""What a burst does: running chat streams alone, then beside many times as many requests at once as the server takes.

    python -m benchmarks.burst --base-url http://127.0.0.1:8000/v1 --model NAME --capacity 20 --out results/burst.json

``--capacity`` is what the server runs and queues at once (engine.max_num_seqs + engine.max_queued_requests); the burst
is ``--times`` as many requests, all sent in the same moment. Written are the statuses of the burst's answers (200 and
429 are right; a 429 must have Retry-After), the gaps between the running streams' tokens alone and during the burst
(p50, p90, p99, max in milliseconds), and their ratios. A client on the same machine takes processor time from the
server too: its own work for the burst is in the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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


async def send_burst(client: httpx.AsyncClient, model: str, count: int, tokens: int) -> Counter[str]:
    """All at once; gives how often each status came. A 429 without Retry-After counts as another."""

    async def one(number: int) -> str:
        response = await client.post("/chat/completions", json=question(model, f"Say {number}.", tokens))
        lacking = response.status_code == 429 and "retry-after" not in response.headers
        return f"{response.status_code}{' without Retry-After' if lacking else ''}"

    return Counter(await asyncio.gather(*(one(number) for number in range(count))))


def summary(gaps: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    return {name: round(1000 * gaps[min(int(len(gaps) * share), len(gaps) - 1)], 1) for name, share in SHARES.items()}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Alone for some seconds, then the burst until its last answer."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"Authorization": f"Bearer {options.api_key}"}
    settings: dict[str, Any] = {"base_url": options.base_url, "headers": headers, "timeout": 600, "limits": limits}
    async with httpx.AsyncClient(**settings) as client:
        streams = Streams(client, options.model, options.streams, options.tokens)
        await asyncio.sleep(options.warm_up)
        alone_from = time.monotonic()
        await asyncio.sleep(options.seconds)
        burst_from = time.monotonic()
        count = options.times * options.capacity
        statuses = await send_burst(client, options.model, count, options.burst_tokens)
        burst_to = time.monotonic()
        await streams.stop()
    alone = streams.between(alone_from, burst_from)
    beside = streams.between(burst_from, burst_to)
    if not alone or not beside:
        raise SystemExit("the streams had no tokens in one of the phases; take more seconds or burst tokens")
    first, second = summary(alone), summary(beside)
    return {
        "burst": {
            "requests": count,
            "statuses": dict(sorted(statuses.items())),
            "seconds": round(burst_to - burst_from, 2),
        },
        "gap_ms_alone": {**first, "gaps": len(alone)},
        "gap_ms_burst": {**second, "gaps": len(beside)},
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
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/burst.json"))
    options = parser.parse_args()
    result = asyncio.run(measure(options))
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k != "api_key"}
    options.out.write_text(json.dumps({"settings": settings, **result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
