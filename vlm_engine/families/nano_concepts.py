"""What the small describer can tell of a person: concepts with their values, and the parts of a body that it finds."""

from __future__ import annotations

UNKNOWN = -1
"""Label of a concept that can't be told."""

COLOURS = ("black", "white", "grey", "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
"""The eleven basic colour terms of English (Berlin and Kay 1969)."""

CONCEPTS: dict[str, tuple[str, ...]] = {
    "upper_colour": COLOURS,
    "lower_colour": COLOURS,
    "upper_kind": ("coat", "jacket", "sweater", "shirt", "t-shirt", "top", "dress"),
    "lower_kind": ("trousers", "jeans", "shorts", "skirt", "dress"),
    "sleeves": ("long", "short"),
    "bag": ("no", "yes"),
    "hat": ("no", "yes"),
    "sunglasses": ("no", "yes"),
}
"""Concept -> its values, in the order of the tower's outputs."""

PARTS = ("background", "upper", "lower", "dress", "legs", "skin", "hair", "shoes", "bag", "hat", "other")
"""What every place of a picture may belong to."""
