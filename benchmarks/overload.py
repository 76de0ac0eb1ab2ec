"""Many more crops than the engine can describe: what the queue does with them.

    python -m benchmarks.overload --out benchmarks/results/overload.json

Ten crops a second of six cameras, by ingest's own publisher, against an engine that describes one a second, for two
minutes; then the source ends and the rest runs out. All are real processes: Valkey, the publisher, `watchword serve`
and an OpenAI-compatible server. Written are queue length, memory, ages of what was described, what each camera got, and
whether described and dropped crops add up to what went in.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.queue_load.engine import PacedEngine
from benchmarks.queue_load.station import QueueStation, wait_until
from pipeline.queue import keys


@dataclass(frozen=True)
class Load:
    """Crops a second in all, seconds that the engine needs for one, and the bounds."""

    rate: float = 10.0
    cameras: int = 6
    seconds: float = 120.0
    engine_seconds: float = 1.0
    bound: int = 32
    deadline: float = 30.0


def measure(load: Load, folder: Path) -> dict[str, Any]:
    """The result as plain JSON types; ``faults`` says what does not add up."""
    source = {"rate": load.rate, "cameras": load.cameras, "bound": load.bound, "deadline": load.deadline, "seed": 0}
    sections = {"describer": {"concurrency": 1}}
    with (
        PacedEngine(load.engine_seconds) as engine,
        QueueStation(folder, engine.base_url, source=source, sections=sections) as station,
    ):
        assert station.client is not None
        wait_until(lambda: engine.asked > 0, 60)
        lengths: list[int] = []
        megabytes: dict[str, list[float]] = {part: [] for part in station.parts}
        end = time.monotonic() + load.seconds
        while time.monotonic() < end:
            time.sleep(1.0)
            lengths.append(sum(int(station.client.xlen(keys.crops(f"cam{n}"))) for n in range(load.cameras)))
            for part in station.parts:
                megabytes[part].append(resident_mb(station.pid(part)))
        station.end("source")
        drained = station.drain(load.deadline + 60)
        station.end("serve")
        book = station.book()
        ages = describing_ages(station.database)
    described = Counter(crop.partition(".")[0] for crop in book.described)
    third = max(1, len(lengths) // 3)
    return {
        "load": asdict(load),
        "went_in": len(book.outcomes),
        "described": len(book.described),
        "dropped": dict(sorted(Counter(name.partition("|")[2] for name in _each(book.counted)).items())),
        "left": 0 if drained else station.left(),
        "described_by_camera": dict(sorted(described.items())),
        "age_when_described_s": {"p50": rank(ages, 0.5), "p95": rank(ages, 0.95), "max": rank(ages, 1.0)},
        "queue_length": {"max": max(lengths), "bound": load.bound * load.cameras},
        "memory_mb": {
            part: {"first_third_max": max(values[:third]), "last_third_max": max(values[-third:])}
            for part, values in megabytes.items()
        },
        "faults": list(book.faults()),
    }


def _each(counted: dict[str, int]) -> list[str]:
    return [name for name, count in counted.items() for _ in range(count)]


def describing_ages(database: Path) -> list[float]:
    """Seconds from the frame to the stored words, of each description, ascending."""
    query = "SELECT d.created - c.time FROM descriptions d JOIN crops c USING (crop_id)"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return sorted(row[0] for row in connection.execute(query))


def resident_mb(pid: int | None) -> float:
    """Of one process, 0 when it isn't there."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def rank(ascending: list[float], share: float) -> float:
    """Nearest rank, to a hundredth."""
    return round(ascending[min(len(ascending) - 1, int(share * len(ascending)))], 2) if ascending else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--out", type=Path, default=Path("overload.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watchword-overload-") as folder:
        result = measure(Load(seconds=options.seconds), Path(folder))
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
