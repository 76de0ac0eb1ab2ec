"""Teaches a network with random weights to see as the teacher, stage by stage:
``python -m training.detector.stages --set DIR --runs DIR --teacher FILE``; run again to go on.

First *apart*: each of ten stages gets what the teacher's stage before it gave, and learns what the teacher's own made
of it. No stage waits for the ones below, so some thousand steps do what takes many times that through the whole
network (blockwise supervision, Li et al., arXiv 1911.13053). Then *in turn*: each gets what the network's own stages
made, and still learns by itself; gradients from far above would drown the little that it needs. At last *together*.
Labels may come afterwards: ``training.detector.train --more RUNS/stages.pt``.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from training.detector.compose import as_seen_by_a_camera
from training.detector.distil import LAYERS, Tutor, hint_loss, told_loss, walk

PHASES = ("apart", "in turn", "together")
SIZES = {"apart": (192, 224, 256, 288), "in turn": (224, 256, 288, 320, 384), "together": (256, 288, 320, 352, 384)}
"""Sides in pixels; each batch has one."""
BATCH = {"apart": 16, "in turn": 8, "together": 8}
RATE = {"apart": 8e-3, "in turn": 4e-3, "together": 3e-4}
WARM_UP = 50
KEEP_EVERY_S = 300.0
TELL_EVERY_S = 20.0


class Views(IterableDataset[tuple[int, torch.Tensor]]):
    """Sections of the set's pictures in other light, without labels, batch by batch without end."""

    def __init__(self, folder: Path, sizes: tuple[int, ...], batch: int, seed: int) -> None:
        self._paths = sorted((folder / "images" / "train").glob("*.jpg"))
        self._sizes, self._batch, self._seed = sizes, batch, seed
        if not self._paths:
            raise FileNotFoundError(folder / "images" / "train")

    def __iter__(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
        """Batches: uint8 ``[batch, 3, side, side]``, RGB."""
        cv2.setNumThreads(1)
        rng = np.random.default_rng(self._seed)
        while True:
            side = int(rng.choice(self._sizes))
            chosen = rng.integers(len(self._paths), size=self._batch)
            views = [self._view(rng, cv2.imread(str(self._paths[number])), side) for number in chosen]
            yield torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()

    @staticmethod
    def _view(rng: np.random.Generator, image: Any, side: int) -> Any:
        height, width = image.shape[:2]
        share, squeeze = rng.uniform(0.4, 1.0), rng.uniform(0.8, 1.25)
        cut = share * min(height, width)
        rows, columns = int(min(height, cut * squeeze)), int(min(width, cut / squeeze))
        y, x = int(rng.integers(0, height - rows + 1)), int(rng.integers(0, width - columns + 1))
        part = cv2.resize(image[y : y + rows, x : x + columns], (side, side), interpolation=cv2.INTER_LINEAR)
        if rng.random() < 0.5:
            part = part[:, ::-1]
        if rng.random() < 0.3:
            part = as_seen_by_a_camera(rng, np.ascontiguousarray(part))
        return part[:, :, ::-1]


def begin(runs: Path) -> tuple[Any, dict[str, Any]]:
    """The network and where the run stands."""
    from ultralytics.nn.tasks import DetectionModel

    torch.manual_seed(7)
    network = DetectionModel("yolo26n.yaml", nc=1, verbose=False)
    network.names = {0: "person"}
    state: dict[str, Any] = {"phase": "apart", "step": 0, "curve": []}
    kept = runs / "stages_state.pt"
    if kept.is_file():
        state = torch.load(kept, map_location="cpu", weights_only=True)
        network.load_state_dict(state.pop("network"))
    return network.train().to(memory_format=torch.channels_last), state


def learn(data: Path, runs: Path, teacher: Path, steps: dict[str, int]) -> Path:
    """Runs the phases for so many steps each; gives the file of the network."""
    runs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(os.cpu_count() or 1)
    tutor = Tutor(teacher)
    network, state = begin(runs)
    for phase, after in zip(PHASES, (*PHASES[1:], "done"), strict=True):
        if state["phase"] == phase:
            _phase(phase, steps[phase], data, runs, tutor, network, state)
            state |= {"phase": after, "step": 0}
            state.pop("optimizer", None)
    return _keep(runs, network, state, None)


def _phase(phase: str, steps: int, data: Path, runs: Path, tutor: Tutor, network: Any, state: dict[str, Any]) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE[phase], betas=(0.9, 0.99), weight_decay=0.01)
    if "optimizer" in state:
        optimizer.load_state_dict(state["optimizer"])
    views = Views(data, SIZES[phase], BATCH[phase], seed=100_000 * PHASES.index(phase) + state["step"])
    loader = iter(DataLoader(views, batch_size=None, num_workers=1, prefetch_factor=4))
    began = told_at = kept_at = time.monotonic()
    sums, count = dict.fromkeys((*map(str, LAYERS), "told"), 0.0), 0
    while state["step"] < steps:
        images = next(loader).to(memory_format=torch.channels_last).float() / 255.0
        theirs, right = tutor.look(images)
        seen, told = walk(network, images, theirs if phase == "apart" else None, by_itself=phase == "in turn")
        hints = {number: hint_loss(seen[number].float(), theirs[number]) for number in LAYERS}
        said = told_loss(told, right)
        rate = RATE[phase] * min(1.0, (state["step"] + 1) / WARM_UP)
        rate *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * state["step"] / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        (torch.stack(list(hints.values())).sum() + said).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        state["step"] += 1
        count += 1
        for number, hint in hints.items():
            sums[str(number)] += float(hint.detach())
        sums["told"] += float(said.detach())
        now = time.monotonic()
        if now - told_at >= TELL_EVERY_S:
            means = {name: round(total / count, 4) for name, total in sums.items()}
            print(f"{phase} step {state['step']}, {now - began:.0f} s: {means}", flush=True)
            state["curve"].append({"phase": phase, "step": state["step"], **means})
            told_at, sums, count = now, dict.fromkeys(sums, 0.0), 0
        if now - kept_at >= KEEP_EVERY_S:
            _keep(runs, network, state, optimizer)
            kept_at = now


def _keep(runs: Path, network: Any, state: dict[str, Any], optimizer: Any) -> Path:
    """Writes where the run stands, and the network as ultralytics loads one."""
    kept = {**state, "network": network.state_dict()}
    if optimizer is not None:
        kept["optimizer"] = optimizer.state_dict()
    torch.save(kept, runs / "stages_state.tmp")
    (runs / "stages_state.tmp").replace(runs / "stages_state.pt")
    head, out = network.model[-1], runs / "stages.pt"
    # The head that later labels are also given to, many places for one person, begins as the one that learnt.
    head.cv2.load_state_dict(head.one2one_cv2.state_dict())
    head.cv3.load_state_dict(head.one2one_cv3.state_dict())
    torch.save({"model": network, "epoch": -1, "train_args": {}}, out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="data", type=Path, required=True, help="what training.detector.dataset wrote")
    parser.add_argument("--runs", type=Path, required=True, help="where the run's files go")
    parser.add_argument("--teacher", type=Path, required=True, help="yolo26n_dequantised.pt")
    parser.add_argument("--apart", type=int, default=1700, metavar="STEPS")
    parser.add_argument("--in-turn", type=int, default=1700, metavar="STEPS")
    parser.add_argument("--together", type=int, default=600, metavar="STEPS")
    options = parser.parse_args()
    os.environ.setdefault("YOLO_OFFLINE", "true")
    steps = dict(zip(PHASES, (options.apart, options.in_turn, options.together), strict=True))
    print(learn(options.data, options.runs, options.teacher, steps))


if __name__ == "__main__":
    main()
