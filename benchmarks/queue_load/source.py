"""People in view of several cameras, reported by ingest's own publisher: ingest without cameras and detector.

    WATCHWORD_REDIS__URL=... python -m benchmarks.queue_load.source --journal FILE --rate 10 --cameras 6

Each person comes (an early crop), stays a while, and leaves (a final crop, then the end of the track). SIGTERM ends it
as it ends ingest: open tracks are ended, what waits is written.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from benchmarks.queue_load.journal import JournalWriter
from ingest.counts import DropCounts, DropLedger
from ingest.observation import ignore
from ingest.preview import PreviewBoard
from ingest.publisher import Publisher
from pipeline.clock import SystemClock
from pipeline.config import RedisConfig
from pipeline.messages import CameraState, CameraStatus, CropKind, CropMessage, TrackMessage, TrackPhase
from pipeline.queue import keys
from pipeline.queue.crops import CropWriter
from pipeline.reasons import Reason

SIZE = (48, 96)
BAD_COLOUR = (1, 2, 3)


def jpeg_of(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", SIZE, colour).save(buffer, "JPEG")
    return buffer.getvalue()


BAD_PICTURE = jpeg_of(BAD_COLOUR)
"""The engine of :mod:`benchmarks.queue_load.engine` fails on it."""


class _JournalingWriter(CropWriter):
    """Notes each crop whose publish was answered."""

    journal: JournalWriter

    def publish(self, message: CropMessage, jpeg: bytes, extras: Sequence[bytes] = ()) -> None:
        super().publish(message, jpeg, extras)
        self.journal.note("answered", message.crop_id)


class _JournalingLedger(DropLedger):
    def __init__(self, journal: JournalWriter) -> None:
        super().__init__()
        self._journal = journal

    def of(self, camera: str) -> DropCounts:
        counts, journal = super().of(camera), self._journal

        class Noting(DropCounts):
            def add(self, reason: Reason, n: int = 1) -> None:
                for _ in range(n):
                    journal.note("dropped", keys.drop_field(camera, reason))
                counts.add(reason, n)

            def add_in_doubt(self, reason: Reason, picture_key: str) -> None:
                journal.note("doubted", picture_key.removeprefix(keys.picture("")))
                counts.add_in_doubt(reason, picture_key)

        return Noting()


class Source:
    """Makes people until it is told to stop.

    Args:
        rate: crops a second, of all cameras together.
        bad: share of pictures that the engine fails on; ``short``: share of crops with a deadline of a few seconds.
    """

    def __init__(self, url: str, journal: Path, options: argparse.Namespace) -> None:
        self._journal = JournalWriter(journal)
        self._options = options
        self._random = random.Random(f"{options.seed} {time.time_ns()}" if options.seed is None else options.seed)
        self._run = f"{time.time_ns():x}"
        self._cameras = [f"cam{n}" for n in range(options.cameras)]
        config = RedisConfig(picture_ttl_s=3600, crops_per_camera=options.bound)
        self._clock = SystemClock()
        self._publisher = Publisher(
            url,
            config,
            self._statuses,
            _JournalingLedger(self._journal),
            PreviewBoard(self._clock),
            self._clock,
            ignore,
        )
        writer = _JournalingWriter(self._publisher._client, config)
        writer.journal = self._journal
        self._publisher._crop_writer = writer
        self._stopping = False
        self._open: dict[str, tuple[float, float]] = {}

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._publisher.start()
        due, number = time.monotonic(), 0
        while not self._stopping:
            # Two crops a person.
            due += 2 / self._options.rate
            number += 1
            self._come(f"{self._cameras[number % len(self._cameras)]}/{self._run}-{number}")
            for track, (came, leaves) in list(self._open.items()):
                if time.monotonic() >= leaves:
                    self._leave(track, came, Reason.TRACK_LOST)
            time.sleep(max(0.0, due - time.monotonic()))
        for track, (came, _) in list(self._open.items()):
            self._leave(track, came, Reason.SHUTDOWN)
        self._publisher.stop(8.0)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _come(self, track: str) -> None:
        self._publisher.track(self._track(track, TrackPhase.START, self._clock.now()))
        self._crop(track, CropKind.EARLY)
        self._open[track] = (self._clock.now(), time.monotonic() + self._random.uniform(0.1, self._options.stay))

    def _leave(self, track: str, came: float, reason: Reason) -> None:
        del self._open[track]
        self._crop(track, CropKind.FINAL)
        end = replace(self._track(track, TrackPhase.END, came), reason=reason, final_crop=True)
        self._publisher.track(end)

    def _crop(self, track: str, kind: CropKind) -> None:
        now, options, chance = self._clock.now(), self._options, self._random
        crop_id = f"{track.replace('/', '.')}.{kind.value}"
        deadline = chance.uniform(1, 5) if chance.random() < options.short else options.deadline
        message = CropMessage(
            crop_id=crop_id,
            camera=track.partition("/")[0],
            track=track,
            kind=kind,
            time=now,
            box=(10.0, 20.0, 58.0, 116.0),
            score=0.8,
            quality=0.5,
            frame_id=1,
            picture_key=keys.picture(crop_id),
            label="person",
            deadline=now + deadline,
            width=SIZE[0],
            height=SIZE[1],
            frame_width=640,
            frame_height=480,
        )
        colour = (chance.randrange(64, 256), chance.randrange(256), chance.randrange(256))
        self._journal.note("made", crop_id)
        self._publisher.crop(message, BAD_PICTURE if chance.random() < options.bad else jpeg_of(colour))

    def _track(self, track: str, phase: TrackPhase, came: float) -> TrackMessage:
        now = self._clock.now()
        return TrackMessage(
            track=track,
            camera=track.partition("/")[0],
            phase=phase,
            label="person",
            time=now,
            first_seen=came,
            last_seen=now,
            box=(10.0, 20.0, 58.0, 116.0),
            score=0.8,
        )

    def _statuses(self) -> list[CameraStatus]:
        now = self._clock.now()
        return [CameraStatus(name, name, CameraState.ONLINE, Reason.NONE, now, now) for name in self._cameras]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--cameras", type=int, default=4)
    parser.add_argument("--bound", type=int, default=64)
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--stay", type=float, default=3.0)
    parser.add_argument("--bad", type=float, default=0.0)
    parser.add_argument("--short", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    Source(os.environ["WATCHWORD_REDIS__URL"], options.journal, options).run()


if __name__ == "__main__":
    main()
