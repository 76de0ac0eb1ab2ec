"""Trains the people detector: ``python -m training.detector.train --set DIR --runs DIR``; run again to go on.

From scratch: the network is ultralytics' ``yolo26n.yaml`` with one class and random weights. Where the processor
multiplies bfloat16, forward and backward run in it with channels last, twice as fast (two cores with AVX-512, 320
pixels, network alone: 35 pictures a second, 18 without either); losses and weights stay float32. Each epoch leaves
``weights/last.pt``, from which a later call goes on; ``--more FILE`` starts another round from those weights, with a
set of another seed.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any, ClassVar

import torch

from ingest.weights import prepare_ultralytics
from pipeline.config.detector import DetectorConfig
from vlm_engine.loader import cpu_has_bfloat16

prepare_ultralytics()
from ultralytics import YOLO  # noqa: E402
from ultralytics.models.yolo.detect import DetectionTrainer  # noqa: E402
from ultralytics.nn.tasks import DetectionModel, load_checkpoint, yaml_model_load  # noqa: E402

NAME = "people"
SETTINGS: dict[str, Any] = {
    "imgsz": 320,
    "batch": 32,
    "nbs": 32,
    # Muon's orthogonalised steps (https://kellerjordan.github.io/posts/muon/) get further in few pictures than AdamW;
    # ultralytics makes them orthogonal in bfloat16, which takes seconds a step where the processor can't.
    "optimizer": "MuSGD" if cpu_has_bfloat16() else "AdamW",
    "lr0": 0.01 if cpu_has_bfloat16() else 0.001,
    "lrf": 0.02,
    "momentum": 0.9,
    "cos_lr": True,
    "warmup_epochs": 1.0,
    "warmup_bias_lr": 0.0,
    # Pasted pictures are mosaics already; real frames gain from it.
    "mosaic": 0.5,
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


def steadily(trainer: Any) -> None:
    """Lets the rate follow a cosine from step to step: ultralytics' changes once an epoch, of which there are few."""
    total = len(trainer.train_loader) * trainer.epochs
    done = trainer.epoch * len(trainer.train_loader) + getattr(trainer, "steps_of_epoch", 0)
    trainer.steps_of_epoch = getattr(trainer, "steps_of_epoch", 0) + 1
    share = trainer.args.lrf + (1 - trainer.args.lrf) * 0.5 * (1 + math.cos(math.pi * min(1.0, done / total)))
    for group in trainer.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * share


def begins(trainer: Any) -> None:
    """Of an epoch."""
    trainer.steps_of_epoch = 0


class BFloat16Model(DetectionModel):  # type: ignore[misc]
    """A network whose training forward runs in bfloat16 where the processor can."""

    def loss(self, batch: dict[str, Any], preds: Any = None) -> Any:
        """As ultralytics has it, computed in float32."""
        if preds is None:
            with torch.autocast("cpu", torch.bfloat16, enabled=cpu_has_bfloat16()):
                preds = self.forward(batch["img"])
        return super().loss(batch, _as_float(preds))


def _as_float(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float()
    if isinstance(value, dict):
        return {name: _as_float(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_as_float(item) for item in value)
    return value


class BFloat16Trainer(DetectionTrainer):  # type: ignore[misc]
    """Trains one: ultralytics itself uses shorter numbers on GPUs only.

    Attributes:
        more: weights to start from. Not by ultralytics' way, which loads them into a network of 80 classes first, and
            so loses what says whether there is a person.
    """

    more: ClassVar[Path | None] = None

    def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> DetectionModel:
        """``weights``: a network to start from.

        With the one head that gives a person many boxes: the other, which gives each one and needs no suppression,
        takes far more training until it finds as many (measured after the same eight epochs: with 0.38 false boxes a
        frame it found 0.65 of the people, where this one found 0.76).
        """
        cfg = {**(cfg if isinstance(cfg, dict) else yaml_model_load(cfg)), "end2end": False}
        model = BFloat16Model(cfg, nc=self.data["nc"], ch=self.data["channels"], verbose=verbose)
        if self.more is not None:
            model.load(load_checkpoint(self.more)[0])
        elif weights is not None:
            model.load(weights)
        # ultralytics has just set it to one fewer than there are cores.
        torch.set_num_threads(os.cpu_count() or 1)
        return model.to(memory_format=torch.channels_last)

    def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """With the pictures' channels last."""
        batch = super().preprocess_batch(batch)
        batch["img"] = batch["img"].contiguous(memory_format=torch.channels_last)
        return batch


def train(data: Path, runs: Path, epochs: int, more: Path | None, rate: float) -> Path:
    """Trains, or goes on where a call was cut off; gives the folder of the run. ``rate``: share of the usual one."""
    run = runs / NAME
    last = run / "weights" / "last.pt"
    if last.is_file() and more is None and unfinished(last):
        begun = YOLO(str(last))
        begun.add_callback("on_train_epoch_start", begins)
        begun.add_callback("on_train_batch_start", steadily)
        begun.train(resume=True, trainer=BFloat16Trainer)
        return run
    model, settings = YOLO("yolo26n.yaml"), SETTINGS | {"lr0": rate * SETTINGS["lr0"]}
    BFloat16Trainer.more = more
    if more is not None:
        settings |= {"warmup_epochs": 0.1, "close_mosaic": min(SETTINGS["close_mosaic"], epochs // 2)}
    model.add_callback("on_train_epoch_start", begins)
    model.add_callback("on_train_batch_start", steadily)
    model.train(
        trainer=BFloat16Trainer,
        data=str(data / "people.yaml"),
        epochs=epochs,
        project=str(runs.resolve()),
        name=NAME,
        single_cls=True,
        **settings,
    )
    return run


def unfinished(checkpoint: Path) -> bool:
    """Whether a run was cut off: ultralytics sets the epoch of a finished one to -1."""
    return bool(torch.load(checkpoint, map_location="cpu", weights_only=False)["epoch"] >= 0)


def ship(
    weights: Path, out: Path, threshold: float | None = None, *, before: Path | None = None, share: float = 1.0
) -> None:
    """Writes a trained checkpoint as what users load: float16, ultralytics' own class, no optimizer.

    Args:
        threshold: the score from which this network is right; all are shifted so that it is users' default one.
        before, share: the weights that the round started from, and how much of the mean is the round's. Between the
            two lie networks that are better than either (WiSE-FT, https://arxiv.org/abs/2109.01903).

    Raises:
        ValueError: ``share`` isn't above 0 and up to 1.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"--share is {share}; it must be above 0 and at most 1")
    stored = torch.load(weights, map_location="cpu", weights_only=False)
    model = stored.get("ema") or stored["model"]
    model.__class__ = DetectionModel
    model.names = {0: "person"}
    if before is not None:
        model.load_state_dict(_mean(model.state_dict(), load_checkpoint(before)[0].state_dict(), share))
    if threshold is not None:
        usual = float(DetectorConfig.model_fields["confidence"].default)
        with torch.no_grad():
            for scores in model.model[-1].cv3:
                scores[-1].bias += math.log(usual / (1 - usual)) - math.log(threshold / (1 - threshold))
    kept = {name: stored[name] for name in ("train_args", "date", "version", "license") if name in stored}
    kept["train_args"] = {
        name: value for name, value in kept.get("train_args", {}).items() if name not in ("project", "save_dir", "data")
    }
    torch.save({**kept, "model": model.half().to(memory_format=torch.contiguous_format), "epoch": -1}, out)


def _mean(new: dict[str, torch.Tensor], old: dict[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    """``share`` of ``new``, the rest of ``old``; counters are ``new``'s."""
    return {
        name: torch.lerp(old[name].float(), value.float(), share) if value.is_floating_point() else value
        for name, value in new.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="data", type=Path, help="what training.detector.dataset wrote")
    parser.add_argument("--runs", type=Path, required=True, help="where the run's folder goes")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--more", type=Path, help="weights of an earlier round to go on from")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the usual learning rate")
    parser.add_argument("--ship", type=Path, help="only write the best weights of the run there, or those of --more")
    parser.add_argument("--threshold", type=float, help="with --ship: the score that becomes users' default one")
    parser.add_argument("--before", type=Path, help="with --ship: what the round started from, to take the mean with")
    parser.add_argument("--share", type=float, default=1.0, help="with --before: how much of the mean is this round's")
    options = parser.parse_args()
    if options.ship is not None:
        weights = options.more or options.runs / NAME / "weights" / "best.pt"
        ship(weights, options.ship, options.threshold, before=options.before, share=options.share)
        return
    if options.data is None:
        parser.error("--set is needed to train")
    print(train(options.data, options.runs, options.epochs, options.more, options.rate))


if __name__ == "__main__":
    main()
