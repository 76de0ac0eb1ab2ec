"""Step and slice times: measured at start by timed forwards, kept in a file for each model and device.

A kept measurement is used when it is of the same model, device, threads and versions, and when a short look shows that
the machine is as fast as it was then; otherwise all is measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from vlm_engine.encoder_cost import EncoderCost
from vlm_engine.encoding import TOTAL
from vlm_engine.memory import run_alone
from vlm_engine.row_cuts import SliceWork
from vlm_engine.step_time import StepTimeModel, calibrate

if TYPE_CHECKING:
    from vlm_engine.config import EngineConfig
    from vlm_engine.encoder_lane import Lane
    from vlm_engine.loader import Checkpoint
    from vlm_engine.runner import ModelRunner

logger = logging.getLogger(__name__)

CONTEXT = 4096
"""Tokens of prefix with which step times are measured, at most: terms of a short one drown in the noise."""
ENCODER_LIMIT_S = 3.0
"""Larger pictures are left out once so much time has gone."""
VERSION = 4
TRUSTED = 1.5
"""A kept measurement is trusted when a decode step takes at most this factor more or less than it says."""

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured.

    Attributes:
        kept: whether it comes from a file.
    """

    step_time: StepTimeModel
    encoder: EncoderCost
    kept: bool = False


def load_or_measure(
    checkpoint: Checkpoint,
    config: EngineConfig,
    runner: ModelRunner,
    lane: Lane,
    pictures: Callable[[], Sequence[Inputs]],
) -> Calibration:
    """Step and slice times for this model on this device.

    Args:
        checkpoint, config, runner: ready to run; no request yet.
        lane: where slices will run.
        pictures: makes processor outputs of pictures of a few sizes, smallest first; called only to measure.
    """
    path = _path(checkpoint, config, runner)
    with torch.inference_mode():
        kept = _read(path) if path is not None else None
        if kept is not None and _as_fast_as_then(checkpoint, runner, kept.step_time):
            return kept
        measured = Calibration(_measure_steps(checkpoint, config, runner), measure_encoder(runner, lane, pictures()))
    if path is not None:
        _write(path, measured)
    return measured


def measure_encoder(runner: ModelRunner, lane: Lane, pictures: Sequence[Inputs]) -> EncoderCost:
    """Times every slice of each picture's first item, after one that only warms up."""
    samples: list[tuple[SliceWork, float]] = []
    started = time.monotonic()
    for number, inputs in enumerate([*pictures[:1], *pictures]):
        if number > 1 and time.monotonic() - started > ENCODER_LIMIT_S:
            break
        item = runner.encoder_items(inputs)[0]
        task = runner.start_encode([item])
        while lane.run(task.next, task.advance) is None:
            pass
        if not lane.waits:
            torch.cuda.synchronize(runner.device)
        measured = lane.measured()
        if number == 0:
            continue
        samples += measured
        total = sum(seconds for _, seconds in measured)
        samples.append((SliceWork(TOTAL, item.rows, item.rows * item.keys), total))
    return EncoderCost.fit(samples)


def _measure_steps(checkpoint: Checkpoint, config: EngineConfig, runner: ModelRunner) -> StepTimeModel:
    capacity = runner.num_blocks * runner.block_size
    own: int = checkpoint.family.text_config.max_position_embeddings
    context = max(1, min(CONTEXT, capacity // 2, min(config.max_model_len or own, own) // 2))
    largest = max(1, min(config.max_num_batched_tokens, capacity - context))
    return calibrate(lambda prefix, new: run_alone(checkpoint, runner, prefix, new), largest, context)


def _as_fast_as_then(checkpoint: Checkpoint, runner: ModelRunner, model: StepTimeModel) -> bool:
    times: list[float] = []
    for _ in range(4):
        started = time.perf_counter()
        run_alone(checkpoint, runner, 0, 1)
        times.append(time.perf_counter() - started)
    ratio = min(times) / model.predict([(0, 1)])
    if 1 / TRUSTED <= ratio <= TRUSTED:
        return True
    logger.info("a step takes %.2f times what was measured before; measuring again", ratio)
    return False


def _path(checkpoint: Checkpoint, config: EngineConfig, runner: ModelRunner) -> Path | None:
    """The file's name holds everything that the times depend on, hashed; None when nothing is to be kept."""
    if config.calibration_dir is None:
        return None
    on_cuda = checkpoint.device.type == "cuda"
    facts: dict[str, Any] = {
        "version": VERSION,
        "model": checkpoint.config.to_dict(),
        "dtype": str(checkpoint.dtype),
        "device": torch.cuda.get_device_name(checkpoint.device) if on_cuda else _processor_name(),
        "threads": None if on_cuda else torch.get_num_threads(),
        "tokens": config.max_num_batched_tokens,
        "rows": checkpoint.encoder.rows if config.encoder_slicing else None,
        "attention": runner.backend.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in checkpoint.name)
    return Path(config.calibration_dir) / f"{name}-{digest[:16]}.json"


def _processor_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} x{os.cpu_count()}"


def _read(path: Path) -> Calibration | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Calibration(
            StepTimeModel.from_json(stored["step_time"]), EncoderCost.from_json(stored["encoder"]), kept=True
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("%s can't be used (%s); measuring again", path, error)
        return None


def _write(path: Path, calibration: Calibration) -> None:
    """Whole or not at all; a folder that can't be written is said and costs nothing but the next start's seconds."""
    text = json.dumps(
        {"step_time": calibration.step_time.as_json(), "encoder": calibration.encoder.as_json()}, indent=1
    )
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logger.warning("step times can't be kept in %s: %s", path.parent, error.strerror)
