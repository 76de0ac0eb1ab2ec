"""What is said of a person, and where the labels come from: garment tags, masks, and colours measured under them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from vlm_engine.families.nano_concepts import COLOURS, CONCEPTS, PARTS, UNKNOWN

OUTER = ("coat", "jacket", "blazer", "suit", "cape", "cardigan", "vest")
INNER = (
    *("sweater", "jumper", "sweatshirt", "hoodie", "shirt", "blouse", "t-shirt", "top"),
    *("bodysuit", "bra", "intimate", "swimwear"),
)
LOWER = ("pants", "jeans", "shorts", "skirt", "leggings", "panties")
WHOLE = ("dress", "romper")
BAGS = ("bag", "purse", "wallet")
HEAD = ("hat",)
PART_OF_GARMENT = {
    **dict.fromkeys((*OUTER, *INNER), "upper"),
    **dict.fromkeys(LOWER, "lower"),
    **dict.fromkeys(WHOLE, "dress"),
    **dict.fromkeys(("stockings", "tights", "socks"), "legs"),
    **dict.fromkeys(
        ("boots", "clogs", "flats", "heels", "loafers", "pumps", "sandals", "shoes", "sneakers", "wedges"), "shoes"
    ),
    **dict.fromkeys(BAGS, "bag"),
    **dict.fromkeys(HEAD, "hat"),
    "hair": "hair",
    "skin": "skin",
    "null": "background",
}
"""Garment -> part of the segmentation; what isn't named (belts, watches, scarves) is "other"."""

KIND_OF_UPPER = {
    **dict.fromkeys(("coat", "cape"), "coat"),
    **dict.fromkeys(("jacket", "blazer", "suit"), "jacket"),
    **dict.fromkeys(("sweater", "jumper", "sweatshirt", "hoodie", "cardigan"), "sweater"),
    **dict.fromkeys(("shirt", "blouse"), "shirt"),
    "t-shirt": "t-shirt",
    **dict.fromkeys(("top", "vest", "bodysuit"), "top"),
}
KIND_OF_LOWER = {
    **dict.fromkeys(("pants", "leggings"), "trousers"),
    "jeans": "jeans",
    "shorts": "shorts",
    "skirt": "skirt",
    **dict.fromkeys(WHOLE, "dress"),
}
LONG_SLEEVES = frozenset(
    ("coat", "jacket", "blazer", "suit", "sweater", "jumper", "sweatshirt", "hoodie", "cardigan", "cape")
)

LEAST_SHARE = 0.012
"""Of the person's pixels: less of a garment's colour isn't worth a word."""


@dataclass(frozen=True, slots=True)
class Photo:
    """One street photograph and what is known of its person.

    Attributes:
        number: of the photograph.
        concepts: concept -> index of its value, or UNKNOWN; colours only where there is a mask.
        has_mask: whether its pixels are labelled.
    """

    number: str
    concepts: dict[str, int]
    has_mask: bool


def read_photos(folder: Path) -> list[Photo]:
    """All photographs of the unpacked archive, by number."""
    tags = json.loads((folder / "tags.json").read_text())
    photos = []
    for number in sorted(tags):
        masked = (folder / "masks" / f"{number}.png").is_file()
        photos.append(Photo(number, concepts_of_tags(tags[number]), masked))
    return photos


def concepts_of_tags(tags: Sequence[str]) -> dict[str, int]:
    """What garment tags say; a photograph's tags are taken to be complete."""
    worn = set(tags)
    found = dict.fromkeys(CONCEPTS, UNKNOWN)

    def note(concept: str, value: str) -> None:
        found[concept] = CONCEPTS[concept].index(value)

    outer = next((garment for garment in OUTER if garment in worn and garment != "vest"), None)
    inner = next((garment for garment in (*INNER, "vest") if garment in worn), None)
    upper = outer or inner
    whole = worn & set(WHOLE)
    lower = [garment for garment in LOWER if garment in KIND_OF_LOWER and garment in worn]
    if upper is not None and upper in KIND_OF_UPPER and not (whole and outer is None):
        note("upper_kind", KIND_OF_UPPER[upper])
    elif whole:
        note("upper_kind", "dress")
    kinds = {KIND_OF_LOWER[garment] for garment in lower}
    if whole and not kinds:
        note("lower_kind", "dress")
    elif len(kinds) == 1 and not whole:
        note("lower_kind", kinds.pop())
    if worn & LONG_SLEEVES:
        note("sleeves", "long")
    note("bag", "yes" if worn & set(BAGS) else "no")
    note("hat", "yes" if "hat" in worn else "no")
    note("sunglasses", "yes" if "sunglasses" in worn else "no")
    return found


@cache
def part_table(folder: Path) -> NDArray[np.uint8]:
    """Index of a mask's label -> index of its part."""
    garments = json.loads((folder / "labels.json").read_text())
    return np.array([PARTS.index(PART_OF_GARMENT.get(garment, "other")) for garment in garments], np.uint8)


@cache
def garment_names(folder: Path) -> tuple[str, ...]:
    """Names of the masks' labels."""
    return tuple(json.loads((folder / "labels.json").read_text()))


def sleeves_of(parts: NDArray[np.uint8]) -> int:
    """Length of the sleeves by how much skin is beside the body between shoulders and hips; UNKNOWN in between."""
    person = parts != PARTS.index("background")
    rows = np.where(person.any(axis=1))[0]
    if len(rows) < 20:
        return UNKNOWN
    top, height = int(rows[0]), len(rows)
    band = parts[top + int(0.2 * height) : top + int(0.55 * height)]
    cloth = np.isin(band, (PARTS.index("upper"), PARTS.index("dress"))).sum()
    skin = (band == PARTS.index("skin")).sum()
    if cloth < 50:
        return UNKNOWN
    share = float(skin) / float(cloth)
    if share > 0.22:
        return CONCEPTS["sleeves"].index("short")
    return CONCEPTS["sleeves"].index("long") if share < 0.09 else UNKNOWN


# Colours -------------------------------------------------------------------------------------------------------------


def lab_of(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """BGR bytes as CIELAB: L 0 to 100, a and b about -128 to 127."""
    return np.asarray(cv2.cvtColor(image.astype(np.float32) / 255.0, cv2.COLOR_BGR2LAB), dtype=np.float32)


def colour_name(lightness: float, a: float, b: float) -> int:
    """Index into COLOURS of a colour in CIELAB; UNKNOWN near the border between two words (beige, navy, teal ...).

    The borders follow how English speakers name colours (Berlin and Kay 1969: the eleven basic terms).
    """
    chroma, hue = math.hypot(a, b), math.degrees(math.atan2(b, a)) % 360.0
    name = ""
    if (lightness < 14 and chroma < 18) or (lightness < 22 and chroma < 9):
        name = "black"
    elif chroma < 8:
        if lightness > 80:
            name = "white"
        elif 30 < lightness < 74:
            name = "grey"
    elif chroma < 14:
        if lightness > 86:
            name = "white"
        elif hue > 230 and hue < 310 and lightness > 18:
            name = "blue"
        elif 20 < hue < 90 and 22 < lightness < 60 and chroma > 11:
            name = "brown"
    else:
        name = _chromatic(lightness, chroma, hue)
    return COLOURS.index(name) if name else UNKNOWN


def _chromatic(lightness: float, chroma: float, hue: float) -> str:
    if hue < 42 or hue >= 350:
        if lightness > 62 and chroma < 60:
            return "pink"
        if chroma > 30 and lightness < 58:
            return "red" if hue < 42 and not (hue < 8 and lightness > 48) else "pink" if lightness > 45 else ""
        return "brown" if hue > 25 and lightness < 45 else "red" if lightness < 30 and chroma > 20 else ""
    if hue < 68:
        if lightness < 52:
            return "brown"
        return "orange" if chroma > 48 else "brown" if lightness < 60 else ""
    if hue < 98:
        if lightness < 50:
            return "brown" if hue < 88 else ""
        return "yellow" if chroma > 36 and lightness > 62 else "brown" if lightness < 66 and hue < 85 else ""
    if hue < 112:
        return "yellow" if lightness > 75 and chroma > 36 else "green" if lightness < 60 else ""
    if hue < 190:
        return "green"
    if hue < 215:
        return ""
    if hue < 298:
        return "blue"
    if hue < 306:
        return "" if lightness > 20 else "blue"
    if hue < 335:
        return "purple" if lightness < 68 else "pink" if hue > 322 else "purple"
    return "pink" if lightness > 50 else "purple" if hue < 345 and lightness < 42 else ""


def colour_of(lab: NDArray[np.float32], where: NDArray[np.bool_]) -> int:
    """The colour word for the pixels in ``where``: the one most of them have, or UNKNOWN when the cloth is of many."""
    pixels = lab[where]
    if len(pixels) < 30:
        return UNKNOWN
    middle = np.median(pixels, axis=0)
    spread = np.abs(pixels - middle).mean(axis=0)
    if spread[1:].sum() > 22 or spread[0] > 24:  # patterns of several colours
        return UNKNOWN
    return colour_name(float(middle[0]), float(middle[1]), float(middle[2]))


PROTOTYPES: dict[str, tuple[tuple[float, float, float, float, float, float], ...]] = {
    "black": ((3, 16, 0, 7, 0, 360),),
    "white": ((82, 98, 0, 7, 0, 360),),
    "grey": ((32, 72, 0, 6, 0, 360),),
    "red": ((25, 52, 38, 78, 12, 40),),
    "orange": ((55, 74, 52, 90, 48, 66),),
    "yellow": ((66, 92, 42, 90, 78, 102),),
    "green": ((20, 75, 18, 62, 118, 182),),
    "blue": ((16, 66, 16, 58, 235, 296), (18, 34, 12, 34, 255, 300)),
    "purple": ((18, 60, 20, 58, 308, 333),),
    "pink": ((62, 84, 20, 52, 340, 375), (48, 66, 42, 66, 345, 363)),
    "brown": ((20, 46, 14, 38, 45, 80), (46, 58, 18, 40, 55, 78)),
}
"""Colour -> ranges of lightness, chroma and hue (degrees) that it is dyed with: lowest and highest of each."""


def dye(rng: np.random.Generator, colour: str) -> tuple[float, float, float]:
    """A CIELAB colour that everybody would call by that name."""
    ranges = PROTOTYPES[colour]
    low_l, high_l, low_c, high_c, low_h, high_h = ranges[int(rng.integers(len(ranges)))]
    hue = math.radians(float(rng.uniform(low_h, high_h)))
    chroma = float(rng.uniform(low_c, high_c))
    return float(rng.uniform(low_l, high_l)), chroma * math.cos(hue), chroma * math.sin(hue)


def dyed(
    image: NDArray[np.uint8], where: NDArray[np.float32], target: tuple[float, float, float], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """The picture with the cloth under ``where`` (0 to 1) in another colour; folds and texture stay."""
    lab = lab_of(image)
    inside = where > 0.5
    middle = np.median(lab[inside], axis=0)
    relief = lab - middle
    low, high = 0.35, 0.9
    contrast = float(rng.uniform(low, high))
    fresh = np.empty_like(lab)
    fresh[..., 0] = np.clip(target[0] + contrast * relief[..., 0] * (0.4 + target[0] / 100.0), 0, 100)
    for channel in (1, 2):
        # A fold is darker and a little greyer; what was another hue in the print fades.
        shade = np.clip(fresh[..., 0] / max(target[0], 1.0), 0.5, 1.3)
        fresh[..., channel] = target[channel] * shade + 0.15 * relief[..., channel]
    out = np.clip(cv2.cvtColor(fresh, cv2.COLOR_LAB2BGR), 0, 1) * 255.0
    weight = where[:, :, None]
    return np.asarray(np.clip(out * weight + image * (1 - weight), 0, 255), dtype=np.uint8)
