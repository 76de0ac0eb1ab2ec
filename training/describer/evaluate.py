"""What the tower tells, judged: ``python -m training.describer.evaluate --tower FILE --set SET --peta ZIP --out DIR``.

On the held-out street photographs, and on PETA's crops of surveillance cameras (research use: for judging only, never
trained on). Each figure stands beside the majority's share and chance; confusion matrices of the colours are drawn.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from training.describer.tower import Arrays, predict, scores
from vlm_engine.families.nano_concepts import COLOURS, CONCEPTS, UNKNOWN
from vlm_engine.families.nano_processing import letterbox
from vlm_engine.families.nano_tower import NanoTower

_LOWER = {
    "lowerBodyTrousers": "trousers",
    "lowerBodySuits": "trousers",
    "lowerBodyJeans": "jeans",
    "lowerBodyShorts": "shorts",
    "lowerBodyHotPants": "shorts",
    "lowerBodyShortSkirt": "skirt",
    "lowerBodyLongSkirt": "skirt",
}
_SLEEVES = {"upperBodyLongSleeve": "long", "upperBodyShortSleeve": "short", "upperBodyNoSleeve": "short"}
_BAGS = frozenset(
    ("carryingBackpack", "carryingMessengerBag", "carryingPlasticBags", "carryingSuitcase", "carryingLuggageCase")
)
NOT_IN_PETA = {"lower_kind": ("dress",)}
"""Values that PETA has no word for: not among what the tower may answer there."""


def peta_concepts(tags: Sequence[str]) -> list[int]:
    """PETA's attributes as ours; UNKNOWN where they say nothing or more than one thing."""
    worn = set(tags)

    def one(values: Sequence[str], concept: str) -> int:
        found = set(values)
        return CONCEPTS[concept].index(found.pop()) if len(found) == 1 else UNKNOWN

    def colour(place: str) -> int:
        names = {name for name in COLOURS if f"{place}Body{name.capitalize()}" in worn}
        return COLOURS.index(names.pop()) if len(names) == 1 else UNKNOWN

    bag = 1 if worn & _BAGS else 0 if "carryingNothing" in worn else UNKNOWN
    known = {
        "upper_colour": colour("upper"),
        "lower_colour": colour("lower"),
        "upper_kind": UNKNOWN,
        "lower_kind": one([kind for tag, kind in _LOWER.items() if tag in worn], "lower_kind"),
        "sleeves": one([length for tag, length in _SLEEVES.items() if tag in worn], "sleeves"),
        "bag": bag,
        "hat": int("accessoryHat" in worn),
        "sunglasses": int("accessorySunglasses" in worn),
    }
    return [known[name] for name in CONCEPTS]


def read_peta(archive: Path) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
    """PETA's crops as the tower sees them, and what is known of each."""
    images, concepts = [], []
    with zipfile.ZipFile(archive) as packed:
        for name, tags in json.loads(packed.read("labels.json")).items():
            image = cv2.imdecode(np.frombuffer(packed.read(name), np.uint8), cv2.IMREAD_COLOR)
            images.append(letterbox(np.ascontiguousarray(np.asarray(image, np.uint8)[..., ::-1])))
            concepts.append(peta_concepts(tags))
    return np.stack(images), np.array(concepts, np.int8)


def only(probabilities: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Without the values that PETA has no word for."""
    allowed = dict(probabilities)
    for name, values in NOT_IN_PETA.items():
        kept = allowed[name].copy()
        kept[:, [CONCEPTS[name].index(value) for value in values]] = 0.0
        allowed[name] = kept
    return allowed


def confusion(truth: NDArray[np.int8], told: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """``[truth, told]`` counts."""
    table = np.zeros((size, size), np.int64)
    np.add.at(table, (truth, told), 1)
    return table


def draw(tables: Mapping[str, NDArray[np.int64]], path: Path) -> None:
    """Confusion matrices of colours side by side, each row as shares of its truth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(tables), figsize=(5.2 * len(tables), 5.2))
    for axis, (title, table) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        shares = table / np.maximum(table.sum(1, keepdims=True), 1)
        axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(len(COLOURS)), COLOURS, rotation=90)
        axis.set_yticks(range(len(COLOURS)), [f"{c} ({n})" for c, n in zip(COLOURS, table.sum(1), strict=True)])
        axis.set_xlabel("told")
        axis.set_title(title)
        for row, column in np.argwhere(shares >= 0.05):
            tone = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, f"{100 * shares[row, column]:.0f}", ha="center", va="center", color=tone, fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def judge(tower: NanoTower, folder: Path, peta: Path | None, out: Path) -> dict[str, Any]:
    """All figures; the picture goes beside them."""
    held = Arrays.read(folder / "held_out.npz")
    sets = {"photographs": (held.images, held.concepts)}
    if peta is not None:
        sets["peta"] = read_peta(peta)
    result: dict[str, Any] = {}
    tables: dict[str, NDArray[np.int64]] = {}
    for title, (images, concepts) in sets.items():
        told = predict(tower, images)
        if title == "peta":
            told = only(told)
        result[title] = scores(told, concepts)
        for place in ("upper_colour", "lower_colour"):
            column = list(CONCEPTS).index(place)
            known = concepts[:, column] != UNKNOWN
            name = f"{title}: {place.replace('_', ' ')}"
            tables[name] = confusion(concepts[known, column], told[place][known].argmax(1), len(COLOURS))
    out.mkdir(parents=True, exist_ok=True)
    draw(tables, out / "colours.png")
    (out / "scores.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def read_tower(path: Path) -> NanoTower:
    """A tower in training, or the one that is shipped (in the precision in which it is)."""
    tower = NanoTower()
    if path.suffix == ".safetensors":
        stored = load_file(path)
        state = {name.removeprefix("tower."): value for name, value in stored.items() if name.startswith("tower.")}
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)["tower"]
    tower.load_state_dict(state)
    return tower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tower", type=Path, required=True, help="weights.safetensors, or last.pt of training")
    parser.add_argument("--set", dest="folder", type=Path, required=True)
    parser.add_argument("--peta", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for title, rows in judge(read_tower(options.tower), options.folder, options.peta, options.out).items():
        print(title)
        for name, row in rows.items():
            print(f"  {name:14}" + "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
