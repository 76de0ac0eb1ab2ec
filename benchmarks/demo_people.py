"""Who of the demo's clip becomes an event: ``python -m benchmarks.demo_people WEIGHTS --out FILE --sheet PICTURE``.

Detector, tracker and best shot as a camera has them, over three rounds of the clip at the demo's rate, with the time
taken from the picture's number. An event belongs to the person with whom most of its boxes share the most; it is false
when most share less than a quarter with anybody.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.track_accuracy import Album, configuration, cut_out, follow, sheet
from ingest.demo_camera.clip import PhotoClip
from ingest.detector import YoloNetwork
from pipeline.config import DetectorConfig
from training.detector.evaluate import CLIP_PEOPLE, clip_people, iou

ROUNDS = 3
LEAST = 0.25
"""IoU of a box with the person it is on."""


def measure(weights: Path, fps: float, imgsz: int) -> tuple[dict[str, Any], Album]:
    """Events of each person, and what was cut out."""
    clip = PhotoClip()
    times = np.arange(0.0, ROUNDS * clip.duration, 1 / fps)
    frames = [(number, float(seconds), clip.picture(float(seconds))) for number, seconds in enumerate(times)]
    network = YoloNetwork(weights, DetectorConfig(weights=str(weights), device="cpu", imgsz=imgsz))
    network.warm_up(imgsz)
    found = [network.detect([picture], imgsz)[0] for _, _, picture in frames]
    config = configuration(fps)
    names = [f"{photo} {number}" for photo, people in CLIP_PEOPLE.items() for number in range(len(people))]
    events_of = dict.fromkeys(names, 0)
    seconds_of = dict.fromkeys(names, 0.0)
    false = 0
    for event in follow(frames, found, config):
        owners: Counter[str] = Counter()
        for number, box in event.sightings:
            overlaps = [(iou(list(box), shown), who) for who, shown, _ in clip_people(clip, frames[number][1])]
            overlap, who = max(overlaps, default=(0.0, ""))
            owners[who if overlap >= LEAST else ""] += 1
        owner = owners.most_common(1)[0][0]
        if not owner:
            false += 1
            continue
        events_of[owner] += 1
        seconds_of[owner] += owners[owner] / fps / ROUNDS
    return {
        "weights": weights.name,
        "rounds": ROUNDS,
        "fps": fps,
        "imgsz": imgsz,
        "events_of_each_person": events_of,
        "seconds_followed_a_round": {who: round(seconds, 1) for who, seconds in seconds_of.items()},
        "found": f"{sum(count > 0 for count in events_of.values())} of {len(events_of)}",
        "false": false,
    }, cut_out(frames, found, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--fps", type=float, default=5.0)
    parser.add_argument("--imgsz", type=int, default=416)
    parser.add_argument("--out", type=Path, help="results as JSON")
    parser.add_argument("--sheet", type=Path, help="what the first weights' events show, as a picture")
    options = parser.parse_args()
    os.environ.setdefault("YOLO_OFFLINE", "true")
    rows, albums = [], []
    for weights in options.weights:
        row, album = measure(weights, options.fps, options.imgsz)
        print(json.dumps(row), flush=True)
        rows.append(row)
        albums.append(album)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    if options.sheet is not None:
        cv2.imwrite(str(options.sheet), sheet({options.weights[0].name: albums[0]}))


if __name__ == "__main__":
    main()
