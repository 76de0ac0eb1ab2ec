"""Which weights the demo uses: what is named, else the official ones, else what comes with Watchword."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cli.engine_config import refuse_missing_folder
from pipeline.cli.errors import UsageProblem
from pipeline.models.hub import ModelProblem, answers, download, look
from pipeline.models.presets import NANO, checkpoint_of
from pipeline.models.ready import OnProgress, assemble_nano

logger = logging.getLogger(__name__)

OFFICIAL_MODEL = checkpoint_of("smolvlm-256m")
OFFICIAL_WEIGHTS = "yolo26n.pt"
# SmolVLM otherwise cuts a crop into nine tiles and an overview: ten times the work, too much for a few cores.
_ONE_TILE = {"processor_options": {"do_image_splitting": False}}

# Its pictures are few tokens, so several at once take hardly longer than one.
_SHORT_PROMPTS = {"concurrency": 4}


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


def choose_weights(named: str | None) -> DemoModel:
    """The detector's weights: what is named, else the official ones if they are here or downloadable at once, else the
    people detector that comes with Watchword. Raises UsageProblem."""
    from ingest.weights import WeightsUnavailable, is_shipped, resolve_weights

    try:
        found = resolve_weights(named or OFFICIAL_WEIGHTS)
    except WeightsUnavailable as error:
        raise UsageProblem(str(error)) from None
    if is_shipped(found):
        worth = "Watchword's own people detector: for first steps; the official YOLO26n sees more"
        return DemoModel(str(found), worth)
    if named is not None:
        return DemoModel(str(found), "as given with --weights")
    return DemoModel(str(found), "official YOLO26n (COCO), by Ultralytics")


def choose_model(named: str | None, on_progress: OnProgress) -> DemoModel:
    """The vision-language model: what is named, else the official one if it is here or downloadable at once, else the
    one that comes with Watchword, assembled in the cache. Raises UsageProblem."""
    if named is not None and named != NANO:
        refuse_missing_folder(named)
        tiles = _cuts_into_tiles(checkpoint_of(named))
        return DemoModel(named, "as given with --model", describer=_ONE_TILE if tiles else {})
    if named == NANO:
        try:
            assemble_nano(on_progress)
        except ModelProblem as problem:
            raise UsageProblem(str(problem)) from None
        return DemoModel(NANO, "as given with --model", {"HF_HUB_OFFLINE": "1"}, _SHORT_PROMPTS)
    if _is_here(OFFICIAL_MODEL) or _downloaded(OFFICIAL_MODEL, on_progress):
        worth = "official SmolVLM-256M: the smallest of its family; short descriptions, now and then wrong"
        return DemoModel(OFFICIAL_MODEL, worth, {"HF_HUB_OFFLINE": "1"}, _ONE_TILE)
    try:
        assemble_nano(on_progress)
    except ModelProblem as problem:
        raise UsageProblem(
            f"no vision-language model: {OFFICIAL_MODEL} is not in Hugging Face's cache and can't be downloaded now, "
            f"and {problem}. Or name a checkpoint's folder with --model DIR (on another machine: hf download "
            f"{OFFICIAL_MODEL} --local-dir DIR)."
        ) from None
    worth = "Watchword's own: clothes, colours, bags; for first steps; an official model sees and says more"
    return DemoModel(NANO, worth, {"HF_HUB_OFFLINE": "1"}, _SHORT_PROMPTS)


def _cuts_into_tiles(model: str) -> bool:
    """Whether it is of SmolVLM's family, by its configuration or, of a hub model, by its name."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text())
    except (OSError, ValueError):
        return "smolvlm" in model.lower()
    return isinstance(config, dict) and config.get("model_type") in ("idefics3", "smolvlm")


def _is_here(model: str) -> bool:
    return look(model).state == "here"


def _downloaded(model: str, on_progress: OnProgress) -> bool:
    """Fetches the model when the hub answers within a few seconds; False when it doesn't, for whatever reason."""
    on_progress(f"looking for {model} on the hub", 0.0)
    if not answers(model):
        return False
    on_progress(f"downloading {model}", 0.0)
    try:
        download(model)
    except ModelProblem as problem:
        logger.warning("%s", problem)
        return False
    return _is_here(model)
