"""Writes the detector's training set: ``python -m training.detector.dataset --data DIR --out DIR``.

Pasted pictures, labelled frames of the training videos, street photographs, and pictures with nobody in them, in the
folder layout of ultralytics. The same seed gives the same set.
"""

from __future__ import annotations

import argparse
import json
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from training.detector.compose import as_seen_by_a_camera, compose
from training.detector.people import CutOut, Image, cut_out, mask_of, photo_of, street_of
from training.detector.sections import alone, section
from training.detector.teacher import SURE, UNSURE, Teacher

TRAINING_VIDEOS = (
    "asl_help.mkv",
    "asl_walk.mkv",
    "classroom_preview.mp4",
    "face-demographics-walking-and-pause_preview.mp4",
    "face-demographics-walking_preview.mp4",
    "people-detection_preview.mp4",
    "worker-zone-detection_preview.mp4",
)
HELD_OUT_VIDEOS = ("one-by-one-person-detection.mp4", "store-aisle-detection_preview.mp4", "vtest_30s.mp4")
"""Whole videos that training never sees; ``training.detector.evaluate`` judges on them."""
VARIANTS = 8
"""How often a frame of a video comes again, in another section and light: they are few, and what cameras see."""
SECTIONS = 3
"""Of each photograph with a mask and nobody else in it."""
VALIDATION_PEOPLE = 20
"""Every so manyth person is kept for the pictures on which epochs are compared."""
Box = tuple[float, float, float, float]


def frames_of(path: Path, every: int) -> Iterator[Image]:
    """Every ``every``-th frame."""
    video = cv2.VideoCapture(str(path))
    number = 0
    while True:
        there, frame = video.read()
        if not there:
            break
        if number % every == 0:
            yield np.asarray(frame, dtype=np.uint8)
        number += 1
    video.release()


class Writer:
    """Pictures and labels of one split."""

    def __init__(self, folder: Path, split: str) -> None:
        self._images, self._labels = folder / "images" / split, folder / "labels" / split
        self._images.mkdir(parents=True, exist_ok=True)
        self._labels.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, image: Image, boxes: Sequence[Box]) -> None:
        height, width = image.shape[:2]
        cv2.imwrite(str(self._images / f"{name}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 92])
        centred = (((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1) for x1, y1, x2, y2 in boxes)
        lines = [f"0 {x / width:.6f} {y / height:.6f} {w / width:.6f} {h / height:.6f}" for x, y, w, h in centred]
        (self._labels / f"{name}.txt").write_text("\n".join(lines))


def unpack(archive: Path, folder: Path) -> Path:
    """The archive's content under ``folder``, unpacked once."""
    if not (folder / "tags.json").exists():
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    return folder


def people_and_streets(photos: Path, teacher: Teacher) -> tuple[list[CutOut], list[Image]]:
    """The people cut out of the photographs that have a mask, and the streets beside them that nobody is in."""
    people, streets = [], []
    for number in sorted(path.stem for path in (photos / "masks").glob("*.png")):
        image, mask = photo_of(photos, number), mask_of(photos, number)
        person = cut_out(image, mask)
        if person is not None:
            people.append(person)
        streets += [side for side in street_of(image, mask) if not teacher.boxes(side, UNSURE)]
    return people, streets


def variant(rng: np.random.Generator, image: Image, boxes: Sequence[Box]) -> tuple[Image, list[Box]]:
    """A section of the picture in other light; people of whom less than a third is left in it have no box."""
    height, width = image.shape[:2]
    share = rng.uniform(0.5, 1.0)
    rows, columns = int(height * share), int(width * share)
    y, x = int(rng.integers(0, height - rows + 1)), int(rng.integers(0, width - columns + 1))
    left: list[Box] = []
    for x1, y1, x2, y2 in boxes:
        box = (max(0.0, x1 - x), max(0.0, y1 - y), min(float(columns), x2 - x), min(float(rows), y2 - y))
        seen = max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])
        if seen >= (x2 - x1) * (y2 - y1) / 3:
            left.append(box)
    return as_seen_by_a_camera(rng, np.ascontiguousarray(image[y : y + rows, x : x + columns])), left


def settled(image: Image, teacher: Teacher) -> tuple[Image, list[Box]] | None:
    """The picture with its people, where whoever the teacher is in two minds about is smeared over; None where it still
    is afterwards."""
    boxes, found = teacher.boxes(image, SURE), teacher.boxes(image, UNSURE)
    if len(boxes) == len(found):
        return image, boxes
    height, width = image.shape[:2]
    smeared = image.copy()
    for box in found:
        if box in boxes:
            continue
        x1, y1 = max(0, int(box[0])), max(0, int(box[1]))
        x2, y2 = min(width, int(box[2]) + 1), min(height, int(box[3]) + 1)
        reach = (max(3, (x2 - x1) // 2), max(3, (y2 - y1) // 2))
        smeared[y1:y2, x1:x2] = cv2.blur(smeared[y1:y2, x1:x2], reach)
    boxes = teacher.boxes(smeared, SURE)
    return (smeared, boxes) if len(boxes) == len(teacher.boxes(smeared, UNSURE)) else None


def write_frames(rng: np.random.Generator, videos: Path, writer: Writer, teacher: Teacher) -> tuple[int, list[Image]]:
    """Labelled frames of the training videos and their variants; gives their number, and frames that nobody is in."""
    count = 0
    empty: list[Image] = []
    for video in TRAINING_VIDEOS:
        for number, frame in enumerate(frames_of(videos / video, 3)):
            if not teacher.boxes(frame, UNSURE):
                empty.append(frame)
            known = settled(frame, teacher)
            if known is None:
                continue
            frame, boxes = known
            name = f"video_{video.split('.')[0]}_{number:04d}"
            writer.put(name, frame, boxes)
            for again in range(VARIANTS):
                writer.put(f"{name}_{again}", *variant(rng, frame, boxes))
            count += 1 + VARIANTS
    return count, empty


def write_sections(rng: np.random.Generator, photos: Path, size: int, writer: Writer, teacher: Teacher) -> int:
    """Sections of the photographs that have a mask; gives their number."""
    count = 0
    for number in sorted(path.stem for path in (photos / "masks").glob("*.png")):
        image, mask = photo_of(photos, number), mask_of(photos, number)
        if not alone(teacher.boxes(image, UNSURE), mask):
            continue
        for again in range(SECTIONS):
            cut = section(rng, image, mask, size)
            if cut is not None:
                writer.put(f"section_{number}_{again}", *cut)
                count += 1
    return count


def write(data: Path, out: Path, pasted: int, size: int, seed: int) -> dict[str, int]:
    """Writes the set; gives how many pictures of each kind there are."""
    rng, teacher = np.random.default_rng(seed), Teacher(data / "yolo")
    photos = unpack(data / "persons" / "ccp.zip", out / "ccp")
    train, valid = Writer(out, "train"), Writer(out, "val")
    people, streets = people_and_streets(photos, teacher)
    frames, empty = write_frames(np.random.default_rng([seed, 1]), data / "videos", train, teacher)
    counts = {"people": len(people), "streets": len(streets), "frames": frames, "photos": 0, "nobody": 0}
    for path in sorted((photos / "photos").glob("*.jpg")):
        image = photo_of(photos, path.stem)
        known = settled(image, teacher)
        if known is not None and known[1]:
            train.put(f"photo_{path.stem}", *known)
            counts["photos"] += 1
    counts["sections"] = write_sections(np.random.default_rng([seed, 2]), photos, size, train, teacher)
    for number, street in enumerate(streets[::2]):
        train.put(f"nobody_{number:04d}", street, [])
        counts["nobody"] += 1
    kept = people[::VALIDATION_PEOPLE]
    shown = [person for number, person in enumerate(people) if number % VALIDATION_PEOPLE]
    began = time.monotonic()
    for number in range(pasted + pasted // 20):
        writer, cast = (train, shown) if number < pasted else (valid, kept)
        composed = compose(rng, size, cast, streets, empty)
        writer.put(f"pasted_{seed}_{number:05d}", composed.image, composed.boxes)
        if number % 500 == 0:
            print(f"{number} of {pasted} pasted pictures, {time.monotonic() - began:.0f} s", flush=True)
    (out / "people.yaml").write_text(
        f"path: {out.resolve()}\ntrain: images/train\nval: images/val\nnames: {{0: person}}\n"
    )
    counts |= {"pasted": pasted, "validation": pasted // 20, "seed": seed, "size": size}
    (out / "set.json").write_text(json.dumps(counts, indent=1) + "\n")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with persons/, videos/ and yolo/")
    parser.add_argument("--out", type=Path, required=True, help="where the set goes")
    parser.add_argument("--pasted", type=int, default=6000, help="pasted pictures (default 6000)")
    parser.add_argument("--size", type=int, default=416, help="their side in pixels (default 416)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(write(options.data, options.out, options.pasted, options.size, options.seed))


if __name__ == "__main__":
    main()
