"""Search, timeline and retention on a store of 100,000 events: ``python -m benchmarks.events``.

Fills an SQLite store with described events of some weeks (rows as the store makes them, a real file for each picture
that is to go), then times what an operator waits for: a page of a search (p50, p95, max over many different queries,
first and later pages), a page of the timeline, and a retention that deletes 10,000 events while another thread writes
all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from pipeline.clock import SystemClock
from pipeline.config.engine import StoreConfig
from pipeline.config.retention import RetentionConfig
from pipeline.housekeeper import Housekeeper, Tally
from pipeline.messages import DescriptionState, EventState, TrackMessage, TrackPhase
from pipeline.reasons import Reason
from pipeline.store import EventFilter, EventStore
from pipeline.store.crop_files import GRACE_S
from pipeline.store.outcome import CropOutcome
from pipeline.store.schema import CropRow, DescriptionRow, EventRow, EventTextRow
from pipeline.store.search_text import tags_of, text_of, time_number

RESULT = Path(__file__).parent / "results" / "events.json"
CAMERAS = [f"camera-{n}" for n in range(16)]
COLOURS = ["red", "blue", "green", "black", "white", "grey", "brown", "yellow", "orange", "dark", "light"]
CLOTHES = ["coat", "jacket", "shirt", "hat", "scarf", "hoodie", "dress", "vest", "trousers", "jeans", "boots", "gloves"]
THINGS = ["backpack", "bag", "umbrella", "bicycle", "box", "phone", "stroller", "suitcase", "parcel", "dog"]
DOINGS = ["walks", "stands", "waits", "runs", "turns", "enters", "leaves", "carries", "pushes", "looks"]
SPAN_S = 40 * 86_400.0
BATCH = 2000


def words(rng: random.Random, number: int) -> str:
    """A description of the usual length; every one has a number of its own."""
    a, b, c = rng.choice(COLOURS), rng.choice(COLOURS), rng.choice(COLOURS)
    return (
        f"A person in a {a} {rng.choice(CLOTHES)} and {b} {rng.choice(CLOTHES)} {rng.choice(DOINGS)} past the door "
        f"with a {c} {rng.choice(THINGS)}, facing the camera; sign {number}, bus {rng.randrange(400)}."
    )


def fill(store: EventStore, count: int, now: float, doomed: int) -> None:
    """``doomed`` of the events are older than the rest; their pictures are old files."""
    rng = random.Random(7)
    old = time.time() - 2 * GRACE_S
    for start in range(0, count, BATCH):
        rows: dict[Any, list[dict[str, Any]]] = {EventRow: [], CropRow: [], DescriptionRow: [], EventTextRow: []}
        for n in range(start, min(start + BATCH, count)):
            share = n / count
            seen = now - 60 * 86_400 + n if n < doomed else now - SPAN_S * (1 - share)
            add(store, rows, n, seen, words(rng, n), CAMERAS[rng.randrange(len(CAMERAS))])
            if n < doomed:
                os.utime(store._files.path(rows[CropRow][-1]["sha256"]), (old, old))

        def put(session: Any, rows: dict[Any, list[dict[str, Any]]] = rows) -> None:
            for table, values in rows.items():
                session.execute(insert(table), values)

        store._database.write(put)


def add(store: EventStore, rows: dict[Any, list[dict[str, Any]]], n: int, seen: float, text: str, camera: str) -> None:
    """The rows that the store would make for one event."""
    event_id, crop_id, state = f"{camera}.bench-{n}", f"crop-{n}", EventState.ENDED.value
    picture = store._files.path(f"{n:064x}")
    size = 20_000
    if seen < time.time() - 45 * 86_400:  # only the events that go need their files
        picture.parent.mkdir(exist_ok=True)
        picture.write_bytes(b"\xff" * size)
    box = [10.0, 20.0, 110.0, 220.0]
    attributes = {"upper": {"colour": text.split()[4]}}
    rows[EventRow].append(
        dict(id=event_id, track=f"{camera}/bench-{n}", camera=camera, label="person", state=state, first_seen=seen)
        | dict(last_seen=seen + 9, box=box, score=0.9, end_reason=Reason.TRACK_LOST.value, final_crop=True)
        | dict(gave_up=False, description_state=DescriptionState.FINAL.value, description=text, model="bench")
        | dict(reason=Reason.NONE.value, best_crop_id=crop_id, attributes=attributes, created=seen, updated=seen)
        | dict(touched=seen)
    )
    rows[CropRow].append(
        dict(crop_id=crop_id, event_id=event_id, kind="final", sha256=f"{n:064x}", bytes=size, time=seen, frame_id=n)
        | dict(box=box, score=0.9, quality=0.8, width=96, height=128, frame_width=1280, frame_height=720)
        | dict(deadline=seen + 120, outcome=CropOutcome.DESCRIBED.value, reason=Reason.NONE.value, created=seen)
    )
    rows[DescriptionRow].append(
        dict(crop_id=crop_id, text=text, model="bench", prompt_hash="0" * 64, finish_reason="stop", prompt_tokens=100)
        | dict(cached_tokens=30, output_tokens=40, first_token_s=0.5, total_s=2.0, attributes=attributes, created=seen)
    )
    tags = tags_of(camera, "person", state, None, attributes)
    rows[EventTextRow].append(
        dict(number=time_number(seen, event_id), event_id=event_id, words=text_of(text, attributes), tags=tags)
    )


def queries(rng: random.Random, now: float) -> list[tuple[str, EventFilter]]:
    """Of every kind: common and rare words, phrases, prefixes, exclusions, numbers, filters, and no hit at all."""
    colour, clothes, thing = rng.choice(COLOURS), rng.choice(CLOTHES), rng.choice(THINGS)
    camera = rng.choice(CAMERAS)
    since = now - rng.random() * SPAN_S
    return [
        ("common word", EventFilter(text="person")),
        ("two words", EventFilter(text=f"{colour} {thing}")),
        ("phrase", EventFilter(text=f'"{colour} {clothes}"')),
        ("prefix", EventFilter(text=f"{clothes[:3]}*")),
        ("short prefix", EventFilter(text=f"{clothes[:1]}* {thing}")),
        ("without", EventFilter(text=f"{clothes} -{colour}")),
        ("only without", EventFilter(text=f"-{colour}")),
        ("number", EventFilter(text=f"sign {rng.randrange(100_000)}")),
        ("four words", EventFilter(text=f"{colour} {clothes} {thing} walks")),
        ("nothing", EventFilter(text=f"{thing} zebra")),
        ("word and camera", EventFilter(text=clothes, camera=camera)),
        ("word and time", EventFilter(text=clothes, since=since, until=since + 86_400)),
        ("attribute", EventFilter(attributes=(("upper.colour", colour),))),
        ("attribute, camera, word", EventFilter(text=thing, camera=camera, attributes=(("upper.colour", colour),))),
        ("state", EventFilter(state=EventState.ENDED)),
        ("rare state", EventFilter(state=EventState.INTERRUPTED, text="person")),
    ]


def timed(store: EventStore, where: EventFilter, pages: int) -> list[float]:
    """Milliseconds for each of the first pages of 50."""
    times, cursor = [], None
    for _ in range(pages):
        begun = time.perf_counter()
        page = store.list_events(where, before=cursor, limit=50)
        times.append((time.perf_counter() - begun) * 1000)
        cursor = page.next
        if cursor is None:
            break
    return times


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    shown = {"p50_ms": statistics.median(ordered), "p95_ms": p95, "max_ms": ordered[-1]}
    return {"n": len(ordered)} | {name: round(value, 2) for name, value in shown.items()}


def measure_search(store: EventStore, now: float, rounds: int) -> dict[str, Any]:
    rng = random.Random(11)
    by_kind: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind, where in queries(rng, now):
            by_kind.setdefault(kind, []).extend(timed(store, where, pages=2))
    every = [value for times in by_kind.values() for value in times]
    return {"all": summary(every)} | {kind: summary(times) for kind, times in by_kind.items()}


def measure_timeline(store: EventStore, now: float, rounds: int) -> dict[str, Any]:
    rng = random.Random(13)
    newest, deep, camera, window = [], [], [], []
    for _ in range(rounds):
        newest += timed(store, EventFilter(), pages=1)
        deep += timed(store, EventFilter(until=now - rng.random() * SPAN_S), pages=3)
        camera += timed(store, EventFilter(camera=rng.choice(CAMERAS)), pages=2)
        since = now - rng.random() * SPAN_S
        window += timed(store, EventFilter(camera=rng.choice(CAMERAS), since=since, until=since + 7200), pages=1)
    named = {"newest": newest, "from a time on": deep, "of a camera": camera, "two hours of a camera": window}
    every = [value for times in named.values() for value in times]
    return {"all": summary(every)} | {name: summary(times) for name, times in named.items()}


def measure_retention(store: EventStore, now: float) -> dict[str, Any]:
    """Deletes the old events while a thread writes track updates one after the other."""
    waits: list[float] = []
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            begun = time.perf_counter()
            store.apply_track(_update(n, now))
            waits.append((time.perf_counter() - begun) * 1000)
            n += 1
            time.sleep(0.005)

    async def prune() -> dict[str, Any]:
        keeper = Housekeeper(store, RetentionConfig(days=45, max_gib=None), SystemClock())
        begun = time.perf_counter()
        doomed = await keeper.plan()
        planned = time.perf_counter() - begun
        tally = Tally()
        await keeper.prune(doomed, tally)
        return {
            "events": tally.events,
            "picture_mib": round(tally.bytes / 2**20, 1),
            "plan_s": round(planned, 3),
            "total_s": round(time.perf_counter() - begun, 3),
        }

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(1.0)
    alone = list(waits)
    waits.clear()
    try:
        result = asyncio.run(prune())
    finally:
        during = list(waits)
        stop.set()
        writer.join()
    return result | {"write_alone": summary(alone), "write_during": summary(during)}


def _update(n: int, now: float) -> TrackMessage:
    return TrackMessage(
        track=f"writer/w-{n // 20}",
        camera="writer",
        phase=TrackPhase.UPDATE,
        label="person",
        time=now + n,
        first_seen=now,
        last_seen=now + n,
        box=(1.0, 2.0, 3.0, 4.0),
        score=0.9,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--doomed", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--store", type=Path, help="A folder that an earlier run with --fill-only made.")
    parser.add_argument("--fill-only", action="store_true", help="Make the store, measure nothing.")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.store or Path(temporary)
        store = EventStore(StoreConfig(data_dir=folder))
        now = time.time()
        if store.list_events(limit=1).events == ():
            fill(store, options.events, now, options.doomed)
        if options.fill_only:
            return
        result = {
            "machine": {"cpus": os.cpu_count(), "machine": platform.machine(), "sqlite": sqlite3.sqlite_version},
            "events": options.events,
            "database_mib": round(sum(p.stat().st_size for p in folder.glob("watchword.db*")) / 2**20, 1),
            "search": measure_search(store, now, options.rounds),
            "timeline": measure_timeline(store, now, options.rounds),
            "retention": measure_retention(store, now),
        }
        store.close()
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("search", "timeline", "retention")}, indent=1))


if __name__ == "__main__":
    main()
