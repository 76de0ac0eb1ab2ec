"""From the configuration file's section to the engine's own dataclass."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.errors import UsageProblem
from pipeline.config import EngineSection
from pipeline.models.hub import ModelProblem
from pipeline.models.places import cache_folder
from pipeline.models.presets import checkpoint_of
from pipeline.models.ready import OnProgress, make_ready, stand_in

if TYPE_CHECKING:
    from vlm_engine import EngineConfig


def engine_model(section: EngineSection) -> str:
    """``engine.model``; what nobody has named may be taken by the model that comes with Watchword."""
    return section.model if "model" in section.model_fields_set else stand_in(section.model)


def ready_model(model: str, on_progress: OnProgress = lambda text, done: None) -> str:
    """What the engine is to load for a model's name. Raises UsageProblem."""
    try:
        return make_ready(model, on_progress)
    except ModelProblem as problem:
        raise UsageProblem(str(problem)) from None


def engine_config(section: EngineSection, model: str | None = None) -> EngineConfig:
    """Every knob that both have under one name. Raises :class:`vlm_engine.ConfigError` for values that don't fit."""
    from vlm_engine import EngineConfig

    shared = {field.name for field in fields(EngineConfig)} & set(EngineSection.model_fields)
    values = {name: getattr(section, name) for name in shared}
    kept = str(cache_folder() / "step-times")
    return EngineConfig(**{**values, "model": checkpoint_of(model or section.model), "calibration_dir": kept})


def refuse_missing_folder(model: str) -> None:
    """Says in an instant what the engine would say after seconds of imports. Raises UsageProblem."""
    if model.startswith(("/", ".", "~")) and not Path(model).expanduser().is_dir():
        raise UsageProblem(f"model {model}: there is no such folder")


def quiet_transformers() -> None:
    """Commands have a bar of their own that transformers' bars would write into. Bars of downloads stay."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.set_tqdm_hook(lambda factory, args, options: factory(*args, **{**options, "disable": True}))
