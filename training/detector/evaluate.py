"""Judges detectors on the held-out videos: ``python -m training.detector.evaluate --videos DIR WEIGHTS...``.

``held_out.json`` has the boxes of 154 frames: drawn by the real YOLO26n, each frame then looked at; missed people
were added, doubled boxes taken out, and people of whom hardly anything is seen marked ``ignore`` (neither asked for nor
false). The demo's clip is judged, too: two photographs whose people are known.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ingest.demo_camera.clip import PhotoClip, window_at
from ingest.detector import YoloNetwork
from pipeline.config.detector import DetectorConfig

Box = Sequence[float]
LEAST_HEIGHT = 60
"""Pixels of the frame from which a person must be found."""
OVERLAP = 0.5
HELD_OUT = Path(__file__).with_name("held_out.json")
CLIP_PEOPLE: Mapping[str, Sequence[Box]] = {
    "bus.jpg": ((49, 398, 245, 903), (222, 405, 345, 861), (669, 392, 810, 878), (0, 550, 63, 873)),
    "zidane.jpg": ((123, 198, 1111, 713), (744, 42, 1146, 714)),
}
"""Everybody in ultralytics' photographs, of whom the demo's clip shows parts: x1, y1, x2, y2 in pixels."""
CLIP_STEP_S = 0.25
SEEN, HARDLY_SEEN = 0.6, 0.05
"""Share of somebody's box within the picture from which they must be found, and up to which nobody asks."""


@dataclass(slots=True)
class Score:
    """Counts over frames.

    Attributes:
        people, found: people of at least ``LEAST_HEIGHT``, and those with a box at IoU 0.5.
        false: boxes on nobody, and second boxes on somebody.
    """

    frames: int = 0
    people: int = 0
    found: int = 0
    false: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "frames": self.frames,
            "people": self.people,
            "recall": round(self.found / max(1, self.people), 3),
            "false_per_frame": round(self.false / max(1, self.frames), 3),
            "ms_per_frame": round(1000 * self.seconds / max(1, self.frames), 1),
        }


def iou(a: Box, b: Box) -> float:
    """Intersection over union."""
    shared = _shared(a, b)
    return shared / (_area(a) + _area(b) - shared) if shared else 0.0


def judge(score: Score, found: Iterable[Box], people: Sequence[Box], ignored: Sequence[Box]) -> None:
    """Adds one frame: ``found`` best first."""
    score.frames += 1
    left = list(people)
    for box in found:
        best = max(left, key=lambda person: iou(box, person), default=None)
        if best is not None and iou(box, best) >= OVERLAP:
            left.remove(best)
        elif not any(iou(box, region) >= 0.3 or _shared(box, region) >= 0.6 * _area(box) for region in ignored):
            score.false += 1
    tall = [person for person in people if person[3] - person[1] >= LEAST_HEIGHT]
    score.people += len(tall)
    score.found += sum(person not in left for person in tall)


@dataclass(frozen=True, slots=True)
class Looked:
    """A picture, and what a detector found on it.

    Attributes:
        people, ignored: who must be found, and who may be.
        found: float ``[n, 6]``: box, score, class; best first.
        seconds: that finding took.
    """

    video: str
    people: Sequence[Box]
    ignored: Sequence[Box]
    found: Any
    seconds: float


CLIP = "demo clip"


def look(weights: Path, videos: Path, imgsz: int) -> list[Looked]:
    """Every picture that is judged, through the detector that cameras use; one torch thread."""
    network = YoloNetwork(weights, DetectorConfig(weights=str(weights), device="cpu", threads=1, imgsz=imgsz))
    network.warm_up(imgsz)
    truth: Mapping[str, Mapping[str, Mapping[str, list[Box]]]] = json.loads(HELD_OUT.read_text())
    looked = []

    def add(video: str, image: Any, people: Sequence[Box], ignored: Sequence[Box]) -> None:
        began = time.perf_counter()
        found = network.detect([image], imgsz)[0]
        seconds = time.perf_counter() - began
        found = found[found[:, 5] == 0]
        looked.append(Looked(video, people, ignored, found[np.argsort(-found[:, 4], kind="stable")], seconds))

    for name, frames in truth.items():
        for number, image in _frames(videos / name, {int(n) for n in frames}):
            add(name, image, frames[str(number)]["people"], frames[str(number)].get("ignore", []))
    for image, people, parts in clip_frames():
        add(CLIP, image, people, parts)
    return looked


def scores(looked: Sequence[Looked], confidence: float) -> dict[str, Any]:
    """By video, and in all of the held-out ones."""
    total, videos = Score(), {one.video: Score() for one in looked}
    for one in looked:
        boxes = one.found[one.found[:, 4] >= confidence][:, :4].tolist()
        for score in (videos[one.video], total) if one.video != CLIP else (videos[CLIP],):
            score.seconds += one.seconds
            judge(score, boxes, one.people, one.ignored)
    return {
        "confidence": confidence,
        "all": total.to_json(),
        "videos": {name: score.to_json() for name, score in videos.items()},
    }


def clip_frames() -> Iterable[tuple[Any, list[Box], list[Box]]]:
    """Pictures of the demo's clip, each with who is to be seen, and who only in part."""
    clip = PhotoClip()
    for seconds in np.arange(0.0, clip.duration, CLIP_STEP_S):
        shown = clip_people(clip, float(seconds))
        people = [box for _, box, share in shown if share >= SEEN]
        parts = [box for _, box, share in shown if HARDLY_SEEN < share < SEEN]
        yield clip.picture(float(seconds)), people, parts


def clip_people(clip: PhotoClip, seconds: float) -> list[tuple[str, Box, float]]:
    """Who is to be seen then: a name, the box within the picture, and the share of the whole box that is."""
    photo, left, top, width = window_at(seconds % clip.duration)
    scale = clip.width / width
    shown: list[tuple[str, Box, float]] = []
    for number, (x1, y1, x2, y2) in enumerate(CLIP_PEOPLE[photo]):
        whole = [scale * (x1 - left), scale * (y1 - top), scale * (x2 - left), scale * (y2 - top)]
        box = [max(0.0, whole[0]), max(0.0, whole[1]), min(clip.width, whole[2]), min(clip.height, whole[3])]
        if box[0] < box[2] and box[1] < box[3]:
            shown.append((f"{photo} {number}", box, _area(box) / _area(whole)))
    return shown


def _frames(path: Path, wanted: set[int]) -> Iterable[tuple[int, Any]]:
    video, number = cv2.VideoCapture(str(path)), 0
    while True:
        there, image = video.read()
        if not there:
            break
        if number in wanted:
            yield number, image
        number += 1
    video.release()


def _shared(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=Path, required=True)
    parser.add_argument("--imgsz", type=int, nargs="+", default=[416])
    parser.add_argument("--confidence", type=float, nargs="+", default=[0.25, 0.35, 0.45])
    parser.add_argument("--out", type=Path, help="writes the results there as JSON")
    parser.add_argument("weights", type=Path, nargs="+")
    options = parser.parse_args()
    results = []
    for weights, imgsz in itertools.product(options.weights, options.imgsz):
        looked = look(weights, options.videos, imgsz)
        for confidence in options.confidence:
            results.append({"weights": weights.name, "imgsz": imgsz} | scores(looked, confidence))
    for result in results:
        print(json.dumps(result))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
