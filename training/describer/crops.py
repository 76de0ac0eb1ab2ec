"""Crops of people as a camera's would look, made from street photographs: other colours, places, sizes and light.

``python -m training.describer.crops --data DIR --out SET --count 24000`` writes them as arrays. Each crop comes with
the part of the body at every fourth pixel, and with what is known of the person. The same seed gives the same set.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from training.describer import labels
from training.describer.labels import Photo
from training.detector.compose import compressed
from training.detector.dataset import unpack
from training.detector.people import Image, cut_out, garments_of, mask_of, photo_of, street_of
from training.detector.scenery import background
from training.detector.teacher import SURE, Teacher
from vlm_engine.families.nano_concepts import COLOURS, CONCEPTS, PARTS, UNKNOWN
from vlm_engine.families.nano_processing import HEIGHT, WIDTH, letterbox

HELD_OUT_EVERY = 7
"""Every so manyth photograph is judged on and never trained on."""
PART_STRIDE = 4
CHUNK = 250
SCENES = 160
"""Backgrounds that each process makes for itself."""
Rng = np.random.Generator
Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One crop.

    Attributes:
        image: uint8 ``[HEIGHT, WIDTH, 3]``, RGB.
        parts: uint8 ``[HEIGHT / 4, WIDTH / 4]``, index into PARTS, or 255 where it isn't known.
        concepts: int8 ``[len(CONCEPTS)]``, index of each one's value or UNKNOWN.
    """

    image: NDArray[np.uint8]
    parts: NDArray[np.uint8]
    concepts: NDArray[np.int8]


def is_held_out(photo: Photo) -> bool:
    """Whether a photograph is for judging only."""
    return int(photo.number) % HELD_OUT_EVERY == 0


def boxes_of(folder: Path, photos: Sequence[Photo], teacher: Teacher) -> dict[str, Box]:
    """Where the person is: by the mask, else by the real detector; photographs with no clear person are left out."""
    found: dict[str, Box] = {}
    for photo in photos:
        if photo.has_mask:
            rows, columns = np.where(mask_of(folder, photo.number))
            if len(rows) > 2000:
                found[photo.number] = (int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max()))
            continue
        boxes = sorted(teacher.boxes(photo_of(folder, photo.number), SURE), key=lambda b: b[1] - b[3])
        if boxes and boxes[0][3] - boxes[0][1] > 200:
            x1, y1, x2, y2 = (int(value) for value in boxes[0])
            found[photo.number] = (x1, y1, x2, y2)
    return found


class CropMaker:
    """Makes crops of the photographs in a folder; ``scenes`` are backgrounds for people who are moved elsewhere."""

    def __init__(self, folder: Path, boxes: dict[str, Box], rng: Rng, scenes: int = SCENES) -> None:
        self._folder = folder
        self._boxes = boxes
        streets: list[Image] = []
        masked = [path.stem for path in sorted((folder / "masks").glob("*.png"))]
        for number in masked[:: max(1, len(masked) // 150)] if scenes else ():
            streets += street_of(photo_of(folder, number), mask_of(folder, number))
        self._scenes = [background(rng, 448, 448, streets, ()) for _ in range(scenes)]

    def sample(self, photo: Photo, rng: Rng, *, changed: bool = True) -> Sample:
        """A crop; with ``changed`` in other colours, places and light, without it as the photograph is."""
        image, concepts = photo_of(self._folder, photo.number), dict(photo.concepts)
        parts = None
        if photo.has_mask:
            raw = garments_of(self._folder, photo.number)
            parts = labels.part_table(self._folder)[raw]
            if concepts["sleeves"] == UNKNOWN:
                concepts["sleeves"] = labels.sleeves_of(parts)
            image = self._coloured(image, raw, parts, concepts, rng if changed else None)
            if changed and rng.random() < 0.4:
                image, parts = self._elsewhere(image, parts, rng)
        x1, y1, x2, y2 = self._window(image, photo, concepts, parts, rng if changed else None)
        image = image[y1:y2, x1:x2]
        parts = None if parts is None else parts[y1:y2, x1:x2]
        if changed:
            image, parts = _camera_view(image, parts, rng)
        crop = letterbox(np.ascontiguousarray(image[..., ::-1]))
        if parts is None:
            small = np.full((HEIGHT // PART_STRIDE, WIDTH // PART_STRIDE), 255, np.uint8)
        else:
            whole = letterbox(np.ascontiguousarray(parts), nearest=True)
            small = np.ascontiguousarray(whole[PART_STRIDE // 2 :: PART_STRIDE, PART_STRIDE // 2 :: PART_STRIDE])
        return Sample(crop, small, np.array([concepts[name] for name in CONCEPTS], np.int8))

    def _coloured(
        self,
        image: Image,
        raw: NDArray[np.uint8],
        parts: NDArray[np.uint8],
        concepts: dict[str, int],
        rng: Rng | None,
    ) -> Image:
        """Notes the colours of the clothes; with ``rng``, often dyes them first."""
        regions = self._garments(raw, parts)
        person = max(int((parts != 0).sum()), 1)
        lab = labels.lab_of(image)
        for concept, region in regions.items():
            if region.sum() / person < labels.LEAST_SHARE:
                concepts[concept] = UNKNOWN
                continue
            one_piece = concept == "lower_colour" and regions["upper_colour"] is region
            if one_piece:
                concepts[concept] = concepts["upper_colour"]
                continue
            jeans = concept == "lower_colour" and CONCEPTS["lower_kind"][concepts["lower_kind"]] == "jeans"
            if rng is not None and rng.random() < (0.12 if jeans else 0.62):
                name = COLOURS[int(rng.integers(len(COLOURS)))]
                soft = cv2.GaussianBlur(region.astype(np.float32), (3, 3), 0)
                image = labels.dyed(image, soft, labels.dye(rng, name), rng)
                concepts[concept] = COLOURS.index(name)
            else:
                concepts[concept] = labels.colour_of(lab, region)
        return image

    def _garments(self, raw: NDArray[np.uint8], parts: NDArray[np.uint8]) -> dict[str, NDArray[np.bool_]]:
        """What counts as the upper and as the lower garment: the largest piece above, the largest below; a dress is
        both where nothing else is."""
        names = labels.garment_names(self._folder)
        dress = parts == PARTS.index("dress")

        def largest(part: str) -> NDArray[np.bool_]:
            inside = raw[parts == PARTS.index(part)]
            if not len(inside):
                return np.zeros(raw.shape, np.bool_)
            return np.asarray(raw == np.bincount(inside, minlength=len(names)).argmax())

        upper, lower = largest("upper"), largest("lower")
        least = labels.LEAST_SHARE * max(int((parts != 0).sum()), 1)
        if dress.sum() > least:
            if upper.sum() < least:
                upper = dress
            if lower.sum() < least:
                lower = dress
        return {"upper_colour": upper, "lower_colour": lower}

    def _elsewhere(self, image: Image, parts: NDArray[np.uint8], rng: Rng) -> tuple[Image, NDArray[np.uint8]]:
        """The person before another background."""
        person = cut_out(image, parts != 0)
        if person is None or not self._scenes:
            return image, parts
        alpha = cv2.GaussianBlur((parts != 0).astype(np.float32), (3, 3), 0)[:, :, None]
        scene = self._scenes[int(rng.integers(len(self._scenes)))]
        height, width = image.shape[:2]
        y, x = int(rng.integers(0, max(1, 448 - height + 1))), int(rng.integers(0, max(1, 448 - width + 1)))
        under = cv2.resize(scene[y : y + height, x : x + width], (width, height))
        return np.clip(image * alpha + under * (1 - alpha), 0, 255).astype(np.uint8), parts

    def _window(
        self,
        image: Image,
        photo: Photo,
        concepts: dict[str, int],
        parts: NDArray[np.uint8] | None,
        rng: Rng | None,
    ) -> Box:
        """The crop's place, with some room around the person; at times the legs lie outside it."""
        height, width = image.shape[:2]
        x1, y1, x2, y2 = self._boxes[photo.number]
        tall, wide = y2 - y1, x2 - x1
        room = np.full(4, 0.06) if rng is None else rng.uniform(-0.03, 0.16, 4)
        left, top = x1 - room[0] * wide, y1 - room[1] * tall * 0.6
        right, bottom = x2 + room[2] * wide, y2 + room[3] * tall * 0.6
        if rng is not None and rng.random() < 0.18:
            share = float(rng.uniform(0.4, 0.95))
            bottom = y1 + share * tall
            if share < 0.62:
                concepts["lower_kind"] = concepts["lower_colour"] = UNKNOWN
        window = max(0, int(left)), max(0, int(top)), min(width, int(right) + 1), min(height, int(bottom) + 1)
        if parts is not None and concepts["hat"] == 1:
            seen = parts[window[1] : window[3], window[0] : window[2]] == PARTS.index("hat")
            if not seen.any():
                concepts["hat"] = UNKNOWN
        return window


def _camera_view(image: Image, parts: NDArray[np.uint8] | None, rng: Rng) -> tuple[Image, NDArray[np.uint8] | None]:
    """As a camera would have it: mirrored, smaller, softer, in other light, noisy and compressed."""
    if rng.random() < 0.5:
        image = np.ascontiguousarray(image[:, ::-1])
        parts = None if parts is None else np.ascontiguousarray(parts[:, ::-1])
    height, width = image.shape[:2]
    tall = int(np.exp(rng.uniform(np.log(60), np.log(260))))
    across = max(8, int(width * tall / height * rng.uniform(0.88, 1.14)))
    image = cv2.resize(image, (across, tall), interpolation=cv2.INTER_AREA)
    if parts is not None:
        parts = cv2.resize(parts, (across, tall), interpolation=cv2.INTER_NEAREST)
    if rng.random() < 0.3:
        image = cv2.GaussianBlur(image, (0, 0), float(rng.uniform(0.3, 1.2)) * tall / 160)
    tone: NDArray[np.floating] = image.astype(np.float32)
    if rng.random() < 0.75:
        tone = 255 * np.power(tone / 255, rng.uniform(0.7, 1.5)) * rng.uniform(0.55, 1.12) + rng.uniform(-8, 22)
    if rng.random() < 0.45:
        tone = tone * rng.uniform(0.88, 1.12, 3).astype(np.float32)
    if rng.random() < 0.3:  # the washed-out colours of cheap cameras
        grey = tone.mean(axis=2, keepdims=True)
        tone = grey + (tone - grey) * float(rng.uniform(0.55, 1.0))
    if rng.random() < 0.4:
        tone = tone + rng.standard_normal(tone.shape, dtype=np.float32) * float(rng.uniform(1, 9))
    out = np.clip(tone, 0, 255).astype(np.uint8)
    if rng.random() < 0.7:
        out = compressed(out, int(rng.integers(30, 95)))
    return out, parts


# Writing -------------------------------------------------------------------------------------------------------------

_MAKER: CropMaker | None = None
_PHOTOS: list[Photo] = []


def _begin(folder: Path, boxes: dict[str, Box], photos: list[Photo], seed: int) -> None:
    global _MAKER, _PHOTOS
    cv2.setNumThreads(1)
    _PHOTOS = photos
    _MAKER = CropMaker(folder, boxes, np.random.default_rng([seed, 9]))


def _chunk(seed: int, number: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int8]]:
    rng = np.random.default_rng([seed, number])
    masked = [photo for photo in _PHOTOS if photo.has_mask]
    samples = []
    for _ in range(CHUNK):
        among = masked if rng.random() < 0.7 else _PHOTOS
        assert _MAKER is not None
        samples.append(_MAKER.sample(among[int(rng.integers(len(among)))], rng))
    return (
        np.stack([sample.image for sample in samples]),
        np.stack([sample.parts for sample in samples]),
        np.stack([sample.concepts for sample in samples]),
    )


def write(data: Path, out: Path, count: int, seed: int) -> None:
    """Writes ``train.npz`` and ``held_out.npz`` (each held-out photograph once, unchanged)."""
    folder = unpack(data / "persons" / "ccp.zip", out / "ccp")
    photos, cache = labels.read_photos(folder), out / "boxes.json"
    if not cache.exists():
        cache.write_text(json.dumps(boxes_of(folder, photos, Teacher(data / "yolo"))))
    boxes: dict[str, Box] = {number: tuple(box) for number, box in json.loads(cache.read_text()).items()}
    known = [photo for photo in photos if photo.number in boxes]
    kept = [photo for photo in known if is_held_out(photo)]
    maker, rng = CropMaker(folder, boxes, np.random.default_rng(seed), scenes=0), np.random.default_rng(seed)
    samples = [maker.sample(photo, rng, changed=False) for photo in kept]
    np.savez(
        out / "held_out.npz",
        images=np.stack([sample.image for sample in samples]),
        parts=np.stack([sample.parts for sample in samples]),
        concepts=np.stack([sample.concepts for sample in samples]),
        numbers=np.array([photo.number for photo in kept]),
    )
    shown = [photo for photo in known if not is_held_out(photo)]
    began, chunks = time.monotonic(), -(-count // CHUNK)
    # Spawned: OpenCV's and torch's threads don't survive a fork.
    spawned, given = get_context("spawn"), (folder, boxes, shown, seed)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawned, initializer=_begin, initargs=given) as pool:
        parts = []
        for number, part in enumerate(pool.map(_chunk, [seed] * chunks, range(chunks))):
            parts.append(part)
            if number % 10 == 0:
                print(f"{(number + 1) * CHUNK} crops, {time.monotonic() - began:.0f} s", flush=True)
    images, places, concepts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    np.savez(out / f"train_{seed}.npz", images=images, parts=places, concepts=concepts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with persons/ and yolo/")
    parser.add_argument("--out", type=Path, required=True, help="where the set goes")
    parser.add_argument("--count", type=int, default=24000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.data, options.out, options.count, options.seed)


if __name__ == "__main__":
    main()
