"""Which model types are supported, by the names in their ``config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm_engine.errors import ModelLoadError
from vlm_engine.families.base import Family
from vlm_engine.families.idefics3 import Idefics3Family
from vlm_engine.families.qwen_vl import QwenVLFamily
from vlm_engine.families.text import TextFamily

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SUPPORTED: dict[str, type[Family]] = {
    "idefics3": Idefics3Family,
    "smolvlm": Idefics3Family,
    "qwen2_vl": QwenVLFamily,
    "qwen2_5_vl": QwenVLFamily,
    "qwen3_vl": QwenVLFamily,
    "llama": TextFamily,
    "qwen2": TextFamily,
    "qwen3": TextFamily,
}


def family_of(config: PretrainedConfig) -> type[Family]:
    """The adapter for a checkpoint. Raises :class:`ModelLoadError` naming the type and what is supported."""
    family = SUPPORTED.get(config.model_type)
    if family is None:
        raise ModelLoadError(
            f"model type {config.model_type!r} is not supported; supported are {', '.join(sorted(SUPPORTED))}"
        )
    return family


def refuse_unsupported(text_config: PretrainedConfig) -> None:
    """Raises :class:`ModelLoadError` for decoders whose attention the paged backends would compute wrongly."""
    layers = set(getattr(text_config, "layer_types", None) or ())
    if layers - {"full_attention"}:
        raise ModelLoadError(
            f"decoder layers of kind {', '.join(sorted(layers - {'full_attention'}))} are not supported: "
            "only full causal attention is"
        )
    if getattr(text_config, "use_bidirectional_attention", False):
        raise ModelLoadError("attention both ways is not supported: only full causal attention is")
