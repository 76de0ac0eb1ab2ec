"""The detector's weights and the vision-language model: there, whole, and of a kind that is supported."""

from __future__ import annotations

import importlib.util
import json
import os
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.cli.checks.finding import Finding, Level, ok, problem, warning
from pipeline.config import DetectorConfig, EngineSection
from pipeline.models.presets import NANO, checkpoint_of
from pipeline.models.ready import nano_is_possible, nano_lacks
from pipeline.redaction import redact

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def check_weights(config: DetectorConfig) -> Iterator[Finding]:
    """Finds them, fetching official ones as ingest would, and looks whether the file is one."""
    from ingest.weights import SHIPPED, WeightsUnavailable, is_shipped, resolve_weights

    subject = "detector weights"
    try:
        path = resolve_weights(config.weights)
    except WeightsUnavailable as error:
        yield problem(subject, str(error))
        return
    if path.name.endswith("_openvino_model") and importlib.util.find_spec("openvino") is None:
        yield problem(subject, f"{path} needs the package openvino: pip install openvino")
    elif path.suffix == ".pt" and not zipfile.is_zipfile(path):
        yield problem(subject, f"{path} is damaged: not a PyTorch checkpoint; delete it or place it anew")
    elif is_shipped(path) and (unknown := [name for name in config.classes if name != "person"]):
        yield problem(subject, f"{path} knows people only, not {', '.join(unknown)} (detector.classes)")
    elif is_shipped(path) and config.weights not in (SHIPPED, str(path)):
        yield warning(
            subject, f"{config.weights} can't be had now; {path}, which comes with Watchword, takes its place"
        )
    else:
        yield ok(subject, str(path))


def check_model(config: EngineSection, timeout: float) -> Iterator[Finding]:
    """Of the in-process engine, or the server that stands in for it."""
    if config.backend == "openai":
        yield _check_server(config, timeout)
    elif (folder := Path(checkpoint_of(config.model)).expanduser()).is_dir():
        yield _check_folder(folder)
    elif config.model == NANO:
        yield _check_nano()
    else:
        found = _check_hub(config, timeout)
        if found.level is Level.PROBLEM and "model" not in config.model_fields_set and nano_is_possible():
            found = warning(
                found.subject, f"{found.text}. Until then {NANO}, which comes with Watchword, takes its place"
            )
        yield found


def _check_nano() -> Finding:
    lacks = nano_lacks()
    if not lacks:
        return ok("model", f"{NANO} comes with Watchword; it is put together at the first start")
    return problem("model", f"{NANO} can't be put together: {lacks}")


def _check_folder(folder: Path) -> Finding:
    subject = "model"
    lacks = []
    if not (folder / "config.json").is_file():
        lacks.append("config.json")
    lacks += _missing_weights(folder)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        lacks.append("a tokenizer (tokenizer.json)")
    if lacks:
        return problem(subject, f"{folder} is no complete checkpoint; it lacks {', '.join(lacks)}")
    return _check_family(subject, str(folder), has_processor=any((folder / name).is_file() for name in _PROCESSORS))


def _missing_weights(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return ["a readable model.safetensors.index.json"]
        return sorted(name for name in names if not (folder / name).is_file())
    return [] if any(folder.glob("*.safetensors")) else ["weights (*.safetensors)"]


def _check_family(subject: str, model: str, *, has_processor: bool, revision: str | None = None) -> Finding:
    """Reads config.json with transformers and asks the engine whether it knows such models."""
    from transformers import AutoConfig

    from vlm_engine import ModelLoadError
    from vlm_engine.families import family_of

    try:
        config = AutoConfig.from_pretrained(model, revision=revision, local_files_only=True)
        family = family_of(config)
    except (OSError, ValueError, KeyError, ModelLoadError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return problem(subject, f"{model} can't be used: {redact(first)}")
    if family.takes_images and not has_processor:
        return problem(subject, f"{model} takes pictures but lacks preprocessor_config.json")
    if not family.takes_images:
        return warning(subject, f"{model} ({config.model_type}) is a text model: it chats, but can't describe people")
    return ok(subject, f"{model} ({config.model_type})")


def _check_hub(config: EngineSection, timeout: float) -> Finding:
    from huggingface_hub import constants, try_to_load_from_cache

    subject, model = "model", checkpoint_of(config.model)
    if model.startswith((".", "/", "~")):
        return problem(subject, f"{model}: there is no such folder")

    def cached(name: str) -> bool:
        return isinstance(try_to_load_from_cache(model, name, revision=config.revision), str)

    if cached("config.json") and (cached("model.safetensors") or cached("model.safetensors.index.json")):
        has_processor = any(cached(name) for name in _PROCESSORS)
        return _check_family(subject, model, has_processor=has_processor, revision=config.revision)
    advice = (
        f"put the checkpoint's folder on this machine and set engine.model to it (hf download {model} --local-dir DIR)"
    )
    if constants.HF_HUB_OFFLINE:
        return problem(subject, f"{model} is not in the cache and HF_HUB_OFFLINE is set; {advice}")
    url = f"{constants.ENDPOINT}/{model}/resolve/{config.revision or 'main'}/config.json"
    try:
        headers = {"User-Agent": "watchword"}
        if token := os.environ.get("HF_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD", headers=headers), timeout=timeout):
            return warning(subject, f"{model} is not in the cache; it is downloaded at the first start")
    except urllib.error.HTTPError as error:
        return problem(subject, f"{model}: {constants.ENDPOINT} answers {error.code}; is the name right? ({advice})")
    except (OSError, ValueError):
        return problem(subject, f"{model} is not in the cache and {constants.ENDPOINT} can't be reached; {advice}")


def _check_server(config: EngineSection, timeout: float) -> Finding:
    subject = "model server"
    if not config.base_url:
        return problem(subject, "engine.backend is openai, but engine.base_url is not set")
    shown = redact(config.base_url)
    request = urllib.request.Request(config.base_url.rstrip("/") + "/models", headers={"User-Agent": "watchword"})
    if config.api_key is not None:
        request.add_header("Authorization", f"Bearer {config.api_key.get_secret_value()}")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            listed: dict[str, Any] = json.load(answer)
        names = [str(entry["id"]) for entry in listed["data"]]
    except urllib.error.HTTPError as error:
        reason = "refuses engine.api_key" if error.code in (401, 403) else f"answers {error.code} to GET /models"
        return problem(subject, f"{shown} {reason}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = redact(str(getattr(error, "reason", error)))
        return problem(subject, f"{shown} can't be used: {text}")
    if config.model not in names:
        return problem(subject, f"{shown} has no model {config.model!r}; it has {', '.join(names) or 'none'}")
    return ok(subject, f"{config.model} at {shown}")
