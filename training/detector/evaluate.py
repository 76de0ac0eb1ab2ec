"""Judges detectors on the held-out videos: ``python -m training.detector.evaluate --videos DIR WEIGHTS...``.

``held_out.json`` has the boxes of 154 frames: drawn by the real YOLO26n, each frame then looked at; missed people
were added, doubled boxes taken out, and people of whom hardly anything is seen marked ``ignore`` (neither asked for nor
false).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

Box = Sequence[float]
LEAST_HEIGHT = 60
"""Pixels of the frame from which a person must be found."""
OVERLAP = 0.5
HELD_OUT = Path(__file__).with_name("held_out.json")


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


def evaluate(weights: Path, videos: Path, imgsz: int, confidence: float) -> dict[str, Any]:
    """Scores by video and in all; one torch thread."""
    import torch
    from ultralytics import YOLO

    torch.set_num_threads(1)
    model = YOLO(str(weights), task="detect")
    truth: Mapping[str, Mapping[str, Mapping[str, list[Box]]]] = json.loads(HELD_OUT.read_text())
    total, scores = Score(), {}
    model.predict(np.zeros((imgsz, imgsz, 3), np.uint8), imgsz=imgsz, nms=False, verbose=False)
    for name, frames in truth.items():
        score = Score()
        for number, image in _frames(videos / name, {int(n) for n in frames}):
            began = time.perf_counter()
            result = model.predict(image, conf=confidence, classes=[0], imgsz=imgsz, nms=False, verbose=False)[0]
            seconds = time.perf_counter() - began
            known = frames[str(number)]
            for one in (score, total):
                one.seconds += seconds
                judge(one, result.boxes.xyxy.tolist(), known["people"], known.get("ignore", []))
        scores[name] = score.to_json()
    return {"weights": weights.name, "imgsz": imgsz, "confidence": confidence, "all": total.to_json(), "videos": scores}


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
    os.environ.setdefault("YOLO_OFFLINE", "true")
    results = [
        evaluate(weights, options.videos, imgsz, confidence)
        for weights in options.weights
        for imgsz in options.imgsz
        for confidence in options.confidence
    ]
    for result in results:
        print(json.dumps(result))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
