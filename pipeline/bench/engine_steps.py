"""What an engine of ours says of itself meanwhile: its steps, predicted and measured, and the encoder's busy time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Any

import httpx

from pipeline.bench.statistics import milliseconds, percentile, share_within

RING = 1000
"""Steps that the engine keeps; asking too seldom loses some."""
SOONEST_S, LATEST_S = 0.2, 8.0
"""Between two questions. An answer of 1,000 steps costs the server some milliseconds, so it is not asked more often
than the ring's half needs."""
MULTIPLES = (1.5, 2.0, 4.0)
"""Of a step that only decodes: the targets under which steps are counted."""
COUNTERS = ("encoder_seconds_sum", "encoder_items_total", "encoder_slices_total", "preprocess_seconds_sum")
"""Of ``/metrics``, without ``watchword_``."""

Step = Mapping[str, Any]
"""One step as ``GET /api/engine/steps`` gives it."""


class StepWatch:
    """Collects all steps between :meth:`start` and :meth:`stop`, asking as often as the ring needs.

    Args:
        fetch: gives the last steps, oldest first.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Sequence[Step]]]) -> None:
        self._fetch = fetch
        self._lock = asyncio.Lock()
        self._collected: list[Step] = []
        self._newest: float | None = None
        self._asked = 0.0
        self._pause = SOONEST_S
        self._task: asyncio.Task[None] | None = None
        self.lost = False
        """Whether steps may have been lost: the ring had turned over between two questions."""

    async def start(self) -> None:
        """Steps up to now don't count."""
        await self._ask(first=True)
        self._task = asyncio.create_task(self._keep_asking())

    async def take(self) -> list[Step]:
        """The steps since the last call (or the start)."""
        await self._ask()
        taken, self._collected = self._collected, []
        return taken

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            await self._ask()

    async def _ask(self, first: bool = False) -> None:
        async with self._lock:
            steps = await self._fetch()
            now = time.monotonic()
            new = list(steps) if self._newest is None else [s for s in steps if s["started"] > self._newest]
            if steps:
                self._newest = steps[-1]["started"]
            if not first:
                self.lost |= len(new) >= RING
                self._collected += new
                rate = len(new) / max(now - self._asked, 1e-3)
                self._pause = min(max(0.5 * RING / rate, SOONEST_S), LATEST_S) if rate else LATEST_S / 8
            self._asked = now


class OperatorApi:
    """The operator endpoints of a server of ours.

    Args:
        client: with the server's key, if it has one.
        root: its address without ``/v1``.
    """

    def __init__(self, client: httpx.AsyncClient, root: str) -> None:
        self._client = client
        self._root = root

    async def available(self) -> bool:
        """Whether this is a server of ours at all."""
        try:
            await self.steps()
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False
        return True

    async def steps(self) -> list[Step]:
        response = await self._client.get(f"{self._root}/api/engine/steps", timeout=30)
        response.raise_for_status()
        return list(response.json()["steps"])

    async def counters(self) -> dict[str, float]:
        """:data:`COUNTERS` that the server has, summed over their labels."""
        from prometheus_client.parser import text_string_to_metric_families

        response = await self._client.get(f"{self._root}/metrics", timeout=30)
        response.raise_for_status()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(response.text):
            for sample in family.samples:
                name = sample.name.removeprefix("watchword_")
                if name in COUNTERS:
                    found[name] = found.get(name, 0.0) + sample.value
        return found


def decode_only_seconds(steps: Sequence[Step]) -> float | None:
    """Median of steps that did nothing but decode."""
    alone = [s["seconds"] for s in steps if s["decode_tokens"] and not s["prefill_tokens"] and not s["slices"]]
    return median(alone) if alone else None


def summarise_steps(steps: Sequence[Step], decode_only_s: float | None, target_ms: float | None) -> dict[str, Any]:
    """How steps with decodes kept their time, and how good the predictions were.

    ``share_within``: of the multiples of ``decode_only_s``, of ``target_ms``, and of what the scheduler allowed each
    step (``allowed``, which follows ``target_itl_ms: auto`` too).

    Args:
        steps: of one phase.
        decode_only_s: the decode-only step of the phase without load.
        target_ms: ``target_itl_ms`` of the server where it is a number.
    """
    decoding = [step for step in steps if step["decode_tokens"]]
    seconds = [step["seconds"] for step in decoding]
    within = {}
    if decode_only_s is not None:
        within = {f"{multiple:g}x": share_within(seconds, multiple * decode_only_s) for multiple in MULTIPLES}
    if target_ms is not None:
        within["target"] = share_within(seconds, target_ms / 1000.0)
    bound = [step["seconds"] / step["target_seconds"] for step in decoding if step["target_seconds"] > 0]
    if bound:
        within["allowed"] = share_within(bound, 1.0)
    return {
        "count": len(steps),
        "with_decodes": len(decoding),
        "with_encoder": sum(bool(step["slices"]) for step in steps),
        "ms": milliseconds(seconds),
        "share_within": within,
        "prediction": prediction_error(steps),
    }


def prediction_error(steps: Sequence[Step]) -> dict[str, dict[str, float | None]]:
    """Measured over predicted seconds: median, 5 % and 95 % points; 1 is perfect.

    ``forward``: the packed forward (measured with sampling and book-keeping, for it is a step's time without its
    slices); ``encoder``: the slices of a step together; ``step``: all of it.
    """
    pairs: dict[str, list[tuple[float, float]]] = {"forward": [], "encoder": [], "step": []}
    for step in steps:
        whole, slices = step["seconds"], step["encoder_seconds"]
        forward, encoder = step["predicted_seconds"], step["encoder_predicted_seconds"]
        pairs["forward"].append((whole - slices, forward))
        pairs["encoder"].append((slices, encoder))
        if (forward > 0 or whole == slices) and (encoder > 0 or slices == 0):
            pairs["step"].append((whole, forward + encoder))
    return {name: _ratios(found) for name, found in pairs.items()}


def _ratios(pairs: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    ratios = [measured / predicted for measured, predicted in pairs if predicted > 0]
    points = {"p5": 0.05, "median": 0.5, "p95": 0.95}
    found = {name: percentile(ratios, share) for name, share in points.items()}
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def encoder_use(before: Mapping[str, float], after: Mapping[str, float], completed: int) -> dict[str, float | None]:
    """The encoder's busy seconds between two readings of the counters, in all and per picture.

    ``per_picture`` divides by pictures whose encoding ended in between; ``per_completed`` by answers. Where prompts
    remain unfinished the two differ, and seconds spent on half-encoded pictures are in both.
    """
    used = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in COUNTERS}
    busy, pictures = used["encoder_seconds_sum"], used["encoder_items_total"]
    return {
        "busy_s": round(busy, 3),
        "pictures": pictures,
        "slices": used["encoder_slices_total"],
        "busy_s_per_picture": round(busy / pictures, 4) if pictures else None,
        "busy_s_per_completed": round(busy / completed, 4) if completed else None,
        "preprocess_s_per_picture": round(used["preprocess_seconds_sum"] / pictures, 4) if pictures else None,
    }
