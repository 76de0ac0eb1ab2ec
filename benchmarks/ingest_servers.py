"""RTSP cameras for ``benchmarks.ingest``, in a process of their own: prints one line of JSON, ends with its stdin.

python -m benchmarks.ingest_servers crowd VIDEO | still | faulty COUNT SECONDS SEED
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ingest.demo_camera import DemoCamera, PhotoClip, ScheduledFault, VideoFileSource
from ingest.demo_camera.clip import ClipSource, Picture, photograph_folder

WIDTH, HEIGHT, FPS = 704, 576, 10
BITS, BAND = 32, 16
"""A picture's own time, in milliseconds, as black and white fields along its upper edge."""
CELL = WIDTH // BITS


class Stamped:
    """A clip of 704x576 whose pictures carry the moment at which they were made, on the clock that all processes of the
    machine share."""

    width, height = WIDTH, HEIGHT

    def __init__(self, source: ClipSource) -> None:
        self._source = source

    def picture(self, seconds: float) -> Picture:
        picture = cv2.resize(self._source.picture(seconds), (WIDTH, HEIGHT))
        now = int(time.monotonic() * 1000) & (1 << BITS) - 1
        for bit in range(BITS):
            picture[:BAND, bit * CELL : (bit + 1) * CELL] = 255 if now >> bit & 1 else 0
        return np.asarray(picture, dtype=np.uint8)


def age_of(picture: Picture) -> float:
    """Seconds since a stamped picture was made."""
    fields = picture[BAND // 2, CELL // 2 :: CELL].mean(axis=1) > 128
    made = sum(1 << bit for bit in range(BITS) if fields[bit])
    return ((int(time.monotonic() * 1000) - made) & (1 << BITS) - 1) / 1000


class StillRoom:
    """A scene in which nothing happens, with a sensor's noise (two grey levels, of seven patterns)."""

    width, height = WIDTH, HEIGHT

    def __init__(self) -> None:
        photograph = cv2.imread(str(photograph_folder() / "bus.jpg"))[:230, 140:600]  # balconies; nobody is there
        room = cv2.resize(photograph, (WIDTH, HEIGHT)).astype(np.float32)
        rng = np.random.default_rng(1)
        self._pictures = [np.clip(room + rng.normal(0, 2, room.shape), 0, 255).astype(np.uint8) for _ in range(7)]

    def picture(self, seconds: float) -> Picture:
        return self._pictures[round(seconds * FPS) % len(self._pictures)]


FAULTS = ("stall", "close", "corrupt=0.5", "hang=DESCRIBE,SETUP", "status=DESCRIBE:503", "skip=0.3", "jump=3600")


def random_faults(rng: random.Random, seconds: float) -> list[ScheduledFault]:
    """One after another, 2 to 8 s each with 10 to 20 s between; what only new connections meet comes with a close."""
    script: list[ScheduledFault] = []
    at = rng.uniform(15, 25)
    while at + 8 < seconds - 30:
        name = rng.choice(FAULTS)
        lasts = 0.0 if name == "close" else rng.uniform(2, 8)
        script.append(ScheduledFault.parse(f"{name}@{at:.2f}" + (f"+{lasts:.2f}" if lasts else "")))
        if name.startswith(("hang", "status")):
            script.append(ScheduledFault.parse(f"close@{at + 0.1:.2f}"))
        at += lasts + rng.uniform(10, 20)
    return script


def main(kind: str, *arguments: str) -> None:
    rng = random.Random(0)
    cameras: list[DemoCamera] = []
    scripts: list[list[ScheduledFault]] = [[]]
    if kind == "crowd":
        cameras = [DemoCamera(Stamped(VideoFileSource(Path(arguments[0]))), fps=FPS)]
    elif kind == "still":
        cameras = [DemoCamera(StillRoom(), fps=FPS)]
    else:
        count, seconds, seed = int(arguments[0]), float(arguments[1]), int(arguments[2])
        rng = random.Random(seed)
        scripts = [random_faults(rng, seconds) for _ in range(count)]
        cameras = [DemoCamera(PhotoClip(320, 240), fps=5, script=script) for script in scripts]
    told: list[dict[str, Any]] = []
    for camera, script in zip(cameras, scripts, strict=True):
        camera.start()
        started = time.monotonic()
        faults = [
            {"name": fault.name, "start": started + fault.start, "end": started + fault.start + (fault.seconds or 0)}
            for fault in script
        ]
        told.append({"url": camera.url, "faults": faults})
    print(json.dumps(told), flush=True)
    sys.stdin.read()
    for camera in cameras:
        camera.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
