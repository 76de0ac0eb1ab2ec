"""Kills of random parts under load, and the accounts afterwards."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.queue_load.book import described
from benchmarks.queue_load.engine import PacedEngine
from benchmarks.queue_load.station import QueueStation

SOURCE = {"rate": 8, "cameras": 3, "bound": 32, "deadline": 45, "bad": 0.03, "short": 0.1}
DRAIN_S = 180.0


@dataclass(frozen=True)
class StormResult:
    """What a storm showed.

    Attributes:
        faults: what doesn't add up; there must be none.
        figures: for the results file.
    """

    faults: list[str]
    figures: dict[str, Any]


def rage(folder: Path, seed: int, seconds: float) -> StormResult:
    """Kills (SIGKILL) one of source, serve and Valkey every 1.5 to 5 seconds, then lets all of it come to rest.

    The seed decides when what is killed.
    """
    chance = random.Random(seed)
    kills: Counter[str] = Counter()
    known: set[str] = set()
    faults: list[str] = []
    with (
        PacedEngine(0.05, lanes=4, busy=0.05, seed=seed) as engine,
        QueueStation(folder, engine.base_url, source={**SOURCE, "seed": seed}) as station,
    ):
        end = time.monotonic() + seconds
        while (pause := chance.uniform(1.5, 5.0)) < end - time.monotonic():
            time.sleep(pause)
            part = chance.choice(station.parts)
            if (pid := station.pid(part)) is not None:
                os.kill(pid, signal.SIGKILL)
                kills[part] += 1
            now = described(station.database)
            faults += [f"{crop} was described and is so no more" for crop in known - now]
            known |= now
        calm = time.monotonic()
        code, _ = station.end("source")
        if code not in (0, -signal.SIGKILL):
            faults.append(f"the source ended with {code}")
        if not station.drain(DRAIN_S):
            faults.append(f"{station.left()} entries are left: {station.tail()}")
        drained = time.monotonic() - calm
        code, took = station.end("serve")
        if code != 0:
            faults.append(f"serve ended with {code} after {took:.1f} s: {station.tail()}")
        book = station.book()
        faults += list(book.faults())
        faults += [f"{crop} was described and is so no more" for crop in known - book.described]
        figures = {
            "seed": seed,
            "seconds": seconds,
            "kills": dict(sorted(kills.items())),
            "crops_made": len(book.journal.made),
            "publishes_answered": len(book.journal.answered),
            "reached_redis": len(book.outcomes),
            "outcomes": dict(sorted(book.by_outcome().items())),
            "described": len(book.described),
            "asked_of_the_engine": engine.asked,
            "events_still_open": book.open_events,
            "seconds_until_all_was_done": round(drained, 1),
            "faults": len(faults),
        }
    return StormResult(faults, figures)
