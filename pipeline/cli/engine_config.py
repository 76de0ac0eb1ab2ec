"""From the configuration file's section to the engine's own dataclass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.errors import UsageProblem
from pipeline.config import EngineSection

if TYPE_CHECKING:
    from vlm_engine import EngineConfig

_SHARED = (
    "revision",
    "dtype",
    "device",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "kv_cache_memory",
    "enable_prefix_caching",
    "max_queued_requests",
    "num_threads",
)


def engine_config(section: EngineSection, model: str | None = None) -> EngineConfig:
    """Raises :class:`vlm_engine.ConfigError` for values that don't go together."""
    from vlm_engine import EngineConfig

    return EngineConfig(model=model or section.model, **{name: getattr(section, name) for name in _SHARED})


def refuse_missing_folder(model: str) -> None:
    """Says in an instant what the engine would say after seconds of imports. Raises UsageProblem."""
    if model.startswith(("/", ".", "~")) and not Path(model).expanduser().is_dir():
        raise UsageProblem(f"model {model}: there is no such folder")


def quiet_transformers() -> None:
    """Commands have a bar of their own that transformers' bars would write into. Bars of downloads stay."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.set_tqdm_hook(lambda factory, args, options: factory(*args, **{**options, "disable": True}))
