"""Trains the people detector: ``python -m training.detector.train --set DIR --runs DIR``; run again to go on.

From scratch: the network is ultralytics' ``yolo26n.yaml`` with one class and random weights. Each epoch leaves
``weights/last.pt``, from which a later call goes on; ``--more N`` starts another round from the weights of the last one
(with a set of another seed, say).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

NAME = "people"
SETTINGS: dict[str, Any] = {
    "imgsz": 320,
    "batch": 32,
    "nbs": 32,
    # Muon's orthogonalised steps (https://kellerjordan.github.io/posts/muon/) get further in few pictures than AdamW.
    "optimizer": "MuSGD",
    "lr0": 0.01,
    "lrf": 0.02,
    "momentum": 0.9,
    "cos_lr": True,
    "warmup_epochs": 1.0,
    "warmup_bias_lr": 0.0,
    # Pasted pictures are mosaics already; real frames gain from it.
    "mosaic": 0.4,
    "close_mosaic": 2,
    "scale": 0.5,
    "translate": 0.15,
    "hsv_h": 0.02,
    "hsv_s": 0.6,
    "hsv_v": 0.4,
    "workers": 1,
    "device": "cpu",
    "amp": False,
    "pretrained": False,
    "plots": True,
    "seed": 7,
    "exist_ok": True,
}


def train(data: Path, runs: Path, epochs: int, more: Path | None) -> Path:
    """Trains, or goes on where a call was cut off; gives the folder of the run."""
    from ultralytics import YOLO

    run = runs / NAME
    last = run / "weights" / "last.pt"
    if last.is_file() and more is None and unfinished(last):
        YOLO(str(last)).train(resume=True)
        return run
    model = YOLO("yolo26n.yaml")
    if more is not None:
        model.load(str(more))
    model.train(
        data=str(data / "people.yaml"),
        epochs=epochs,
        project=str(runs.resolve()),
        name=NAME,
        single_cls=True,
        **SETTINGS,
    )
    return run


def unfinished(checkpoint: Path) -> bool:
    """Whether a run was cut off: ultralytics sets the epoch of a finished one to -1."""
    import torch

    return bool(torch.load(checkpoint, map_location="cpu", weights_only=False)["epoch"] >= 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="data", type=Path, required=True, help="what training.detector.dataset wrote")
    parser.add_argument("--runs", type=Path, required=True, help="where the run's folder goes")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--more", type=Path, help="weights of an earlier round to go on from")
    options = parser.parse_args()
    os.environ.setdefault("YOLO_OFFLINE", "true")
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    print(train(options.data, options.runs, options.epochs, options.more))


if __name__ == "__main__":
    main()
