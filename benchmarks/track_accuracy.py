"""Events against hand counts of real people: ``python -m benchmarks.track_accuracy``.

Runs the real detector and tracker over the videos that have a hand count (``tests/ingest/hand_counts``), thinned out to
a camera's rate as the reader does it, with the time taken from the frame numbers. Counted are the events of each person
and pass: more than one is a fault ("split"), none is a miss, one that holds sightings of two people is "mixed", one
that belongs to nobody is "false". ``--sheet FILE`` writes what was cut out as one picture, to be looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ingest.analysis import CameraAnalysis
from ingest.arrival import Arrivals
from ingest.counts import DropCounts
from ingest.detection import Rows, check_boxes
from ingest.detector import YoloNetwork
from ingest.frame import Frame, Image
from ingest.observation import ignore
from ingest.preview import PreviewBoard
from ingest.track import TrackNames
from ingest.tracker import PersonTracker
from pipeline.config import CameraConfig, DetectorConfig, WatchwordConfig
from pipeline.messages import Box, CropMessage, TrackMessage
from pipeline.reasons import Reason

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "track_accuracy.json"
HAND_COUNTS = ROOT / "tests" / "ingest" / "hand_counts"
SHARED = ROOT.parent / "shared" / "data"
WEIGHTS = SHARED / "yolo" / "yolo26n_int8_openvino_model"
START = 1_700_000_000.0
PERSON = {0: "person"}
RATES = (5.0, 10.0)
HELD_OUT = (
    "one-by-one-person-detection.mp4",
    "face-demographics-walking-and-pause_preview.mp4",
    "face-demographics-walking_preview.mp4",
    "people-detection_preview.mp4",
    "asl_walk.mkv",
    "asl_help.mkv",
)
"""Not looked at while parameters were chosen; chosen on the others."""
TOLERANCE = 0.15
"""A hand-made mark may lie so far outside of a box, as a share of the box's side."""
PURE = 0.9


@dataclass(frozen=True, slots=True)
class Pass:
    """One person from coming into view to leaving it.

    ``person`` is the same for two passes of somebody who comes back; ``at``: frame number -> about the body's middle.
    """

    who: str
    person: str
    enters_s: float
    leaves_s: float
    at: dict[int, tuple[float, float]]

    def position(self, frame: int) -> tuple[float, float] | None:
        """Where the person is on a frame; None before the first mark and after the last, but for half a second."""
        numbers = sorted(self.at)
        if not numbers[0] - 5 <= frame <= numbers[-1] + 10:
            return None
        x = float(np.interp(frame, numbers, [self.at[n][0] for n in numbers]))
        y = float(np.interp(frame, numbers, [self.at[n][1] for n in numbers]))
        return x, y


@dataclass(frozen=True, slots=True)
class HandCount:
    video: str
    fps: float
    frames: int
    passes: tuple[Pass, ...]


@dataclass(slots=True)
class SeenEvent:
    """What the tracker made: the frames and boxes of one event."""

    name: str
    sightings: list[tuple[int, Box]] = field(default_factory=list)
    first_frame: int = 0
    last_frame: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """``events_of``: number of events of each pass, in the hand count's order."""

    events_of: tuple[int, ...]
    mixed: int
    false: int

    @property
    def at_most_one(self) -> int:
        return sum(n <= 1 for n in self.events_of)

    @property
    def missed(self) -> int:
        return sum(n == 0 for n in self.events_of)


class FrameClock:
    """Time as the frame numbers say."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return START + self.seconds

    def monotonic(self) -> float:
        return 1000.0 + self.seconds


class Album:
    """An outbox that keeps what was sent."""

    def __init__(self) -> None:
        self.tracks: list[TrackMessage] = []
        self.crops: list[tuple[CropMessage, bytes]] = []

    def track(self, message: TrackMessage) -> None:
        self.tracks.append(message)

    def crop(self, message: CropMessage, jpeg: bytes, extras: tuple[bytes, ...] = ()) -> None:
        self.crops.append((message, jpeg))


def hand_count(path: Path) -> HandCount:
    """Reads one file of hand counts."""
    raw = json.loads(path.read_text())
    passes = []
    for one in raw["passes"]:
        at = {int(number): (x, y) for number, (x, y) in one["at"].items()}
        passes.append(Pass(one["who"], one.get("person", one["who"]), one["enters_s"], one["leaves_s"], at))
    return HandCount(raw["video"], raw["fps"], raw["frames"], tuple(passes))


def pictures(video: Path, fps: float, wanted_fps: float) -> Iterator[tuple[int, float, Image]]:
    """Frame number, its second and the picture, of the frames that a camera of ``wanted_fps`` would look at."""
    config = CameraConfig(id="video", url=str(video), fps=wanted_fps)
    arrivals = Arrivals(config, live=False, nominal_fps=fps, now=1000.0)
    capture = cv2.VideoCapture(str(video))
    number = 0
    while True:
        read, image = capture.read()
        if not read:
            return
        if arrivals.is_due(1000.0 + number / fps):
            yield number, number / fps, np.asarray(image, dtype=np.uint8)
        number += 1


class Detections:
    """The detector's answers, kept in a folder between runs if one is given (tuning looks at the same ones often)."""

    def __init__(self, detector: YoloNetwork, folder: Path | None = None) -> None:
        self._detector = detector
        self._folder = folder

    def of(self, video: Path, frames: list[tuple[int, float, Image]]) -> list[Rows]:
        path = self._folder / f"{video.stem}.pkl" if self._folder else None
        known: dict[int, Rows] = pickle.loads(path.read_bytes()) if path and path.exists() else {}
        for number, _, image in frames:
            if number not in known:
                known[number] = self._detector.detect([image])[0]
        if path:
            path.write_bytes(pickle.dumps(known))
        return [known[number] for number, _, _ in frames]


def follow(frames: list[tuple[int, float, Image]], found: list[Rows], config: WatchwordConfig) -> list[SeenEvent]:
    """The events that the tracker makes of a video."""
    camera = config.cameras[0]
    clock = FrameClock()
    confidence = camera.confidence or config.detector.confidence
    tracker = PersonTracker(camera.id, config.tracking, confidence, camera.fps, TrackNames(START))
    events: dict[str, SeenEvent] = {}
    for (number, seconds, image), rows in zip(frames, found, strict=True):
        clock.seconds = seconds
        height, width = image.shape[:2]
        people = check_boxes(rows, width, height, 0.0, PERSON).detections
        for track, detection in tracker.update(people, clock.now(), clock.monotonic(), image).seen:
            event = events.setdefault(track.name, SeenEvent(track.name, first_frame=number))
            event.sightings.append((number, detection.box))
            event.last_frame = number
    return list(events.values())


def cut_out(frames: list[tuple[int, float, Image]], found: list[Rows], config: WatchwordConfig) -> Album:
    """What the whole analysis sends for a video."""
    camera = config.cameras[0]
    clock, album = FrameClock(), Album()
    drops, previews = DropCounts(), PreviewBoard(clock)
    analysis = CameraAnalysis(camera, config, TrackNames(START), album, previews, drops, clock, ignore)
    for (number, seconds, image), rows in zip(frames, found, strict=True):
        clock.seconds = seconds
        analysis.frame(Frame(camera.id, number, image, clock.now(), clock.monotonic(), 1), rows, PERSON, 0.0)
    analysis.end_all(Reason.SHUTDOWN)
    return album


def compare(count: HandCount, events: list[SeenEvent]) -> Verdict:
    """Gives each event to the person whom most of its sightings show."""
    events_of = [0] * len(count.passes)
    mixed = false = 0
    for event in events:
        owners = Counter(_whose(count, frame, box) for frame, box in event.sightings)
        owner = owners.most_common(1)[0][0]
        if owner is None:
            false += 1
            continue
        events_of[owner] += 1
        people: Counter[str] = Counter()
        for who, sightings in owners.items():
            if who is not None:
                people[count.passes[who].person] += sightings
        mixed += people.most_common(1)[0][1] < PURE * people.total()
    return Verdict(tuple(events_of), mixed, false)


def _whose(count: HandCount, frame: int, box: Box) -> int | None:
    """The pass whose mark lies in the box and nearest to its middle."""
    wide, high = box[2] - box[0], box[3] - box[1]
    best, least = None, 0.5 + TOLERANCE
    for index, person in enumerate(count.passes):
        at = person.position(frame)
        if at is None:
            continue
        away = max(abs(at[0] - (box[0] + box[2]) / 2) / wide, abs(at[1] - (box[1] + box[3]) / 2) / high)
        if away <= least:
            best, least = index, away
    return best


def configuration(fps: float, **sections: Any) -> WatchwordConfig:
    """The defaults for one camera of that rate."""
    return WatchwordConfig(cameras=(CameraConfig(id="video", url="rtsp://127.0.0.1/x", fps=fps),), **sections)


def sheet(albums: dict[str, Album], side: int = 220, columns: int = 8) -> Image:
    """All crops as one picture, each with its kind, quality and track."""
    tiles = []
    for video, album in albums.items():
        for message, jpeg in album.crops:
            picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
            assert picture is not None
            scale = side / max(picture.shape[:2])
            picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
            tile = np.full((side + 34, side, 3), 32, dtype=np.uint8)
            tile[34 : 34 + picture.shape[0], : picture.shape[1]] = picture
            number = message.track.rpartition("-")[2]
            words = (f"{video[:12]} #{number}", f"{message.kind.value} {message.quality:.2f} f{message.frame_id}")
            for line, text in enumerate(words):
                cv2.putText(tile, text, (2, 13 + 15 * line), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1)
            tiles.append(tile)
    while len(tiles) % columns:
        tiles.append(np.zeros_like(tiles[0]))
    rows = [np.hstack(tiles[start : start + columns]) for start in range(0, len(tiles), columns)]
    return np.asarray(np.vstack(rows), dtype=np.uint8)


def measure(detections: Detections, rates: tuple[float, ...], only: str = "") -> tuple[list[dict[str, Any]], Any]:
    """A row for each video and rate, and the crops at the first rate."""
    rows: list[dict[str, Any]] = []
    albums: dict[str, Album] = {}
    for path in sorted(HAND_COUNTS.glob("*.json")):
        count = hand_count(path)
        video = SHARED / "videos" / count.video
        if only not in count.video:
            continue
        for fps in rates:
            frames = list(pictures(video, count.fps, fps))
            found = detections.of(video, frames)
            config = configuration(fps)
            events = follow(frames, found, config)
            verdict = compare(count, events)
            rows.append(
                {
                    "video": count.video,
                    "held_out": count.video in HELD_OUT,
                    "fps": fps,
                    "passes": len(count.passes),
                    "events": len(events),
                    "at_most_one": verdict.at_most_one,
                    "events_of_each_pass": list(verdict.events_of),
                    "missed": verdict.missed,
                    "mixed": verdict.mixed,
                    "false": verdict.false,
                }
            )
            if fps == rates[0]:
                albums[count.video] = cut_out(frames, found, config)
                kinds = Counter(message.kind.value for message, _ in albums[count.video].crops)
                rows[-1]["crops"] = dict(kinds)
            print(json.dumps(rows[-1]), flush=True)
    return rows, albums


def totals(rows: list[dict[str, Any]], fps: float) -> dict[str, Any]:
    """Sums over the videos at one rate, all and held out."""

    def total(chosen: list[dict[str, Any]]) -> dict[str, Any]:
        sums = {key: sum(row[key] for row in chosen) for key in ("passes", "events", "at_most_one", "missed")}
        sums |= {key: sum(row[key] for row in chosen) for key in ("mixed", "false")}
        return sums | {"at_most_one_share": round(sums["at_most_one"] / sums["passes"], 3) if sums["passes"] else None}

    at_rate = [row for row in rows if row["fps"] == fps]
    return {"fps": fps, "all": total(at_rate), "held_out": total([row for row in at_rate if row["held_out"]])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sheet", type=Path, help="Write the crops at the first rate as one picture.")
    parser.add_argument("--cache", type=Path, help="Folder that keeps the detector's answers between runs.")
    parser.add_argument("--only", default="", help="Videos whose name holds this.")
    parser.add_argument("--out", type=Path, default=None, help=f"Default: {RESULT.name}, unless --only is given.")
    options = parser.parse_args()
    detector = YoloNetwork(WEIGHTS, DetectorConfig(device="cpu", threads=1))
    detector.warm_up()
    rows, albums = measure(Detections(detector, options.cache), RATES, options.only)
    sums = [totals(rows, fps) for fps in RATES]
    print(json.dumps(sums, indent=1))
    if options.sheet:
        cv2.imwrite(str(options.sheet), sheet(albums))
    out = options.out or (None if options.only else RESULT)
    if out:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "weights": WEIGHTS.name}
        out.write_text(json.dumps({"machine": machine, "totals": sums, "videos": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
