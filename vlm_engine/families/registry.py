"""Which model types are supported, by the names in their ``config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm_engine.errors import ModelLoadError
from vlm_engine.families.base import Family
from vlm_engine.families.idefics3 import Idefics3Family
from vlm_engine.families.internvl import InternVLFamily
from vlm_engine.families.llava_onevision import LlavaOnevisionFamily
from vlm_engine.families.nano import NanoFamily
from vlm_engine.families.qwen_vl import QwenVLFamily
from vlm_engine.families.refusals import UNSAFE, refuse_unsupported
from vlm_engine.families.text import TextFamily

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SUPPORTED: dict[str, type[Family]] = {
    "idefics3": Idefics3Family,
    "smolvlm": Idefics3Family,
    "qwen2_vl": QwenVLFamily,
    "qwen2_5_vl": QwenVLFamily,
    "qwen3_vl": QwenVLFamily,
    "llava_onevision": LlavaOnevisionFamily,
    "internvl": InternVLFamily,
    "watchword_nano": NanoFamily,
    "llama": TextFamily,
    "qwen2": TextFamily,
    "qwen3": TextFamily,
}


def family_of(config: PretrainedConfig) -> type[Family]:
    """The adapter for a checkpoint, from its configuration alone: nothing has been read of its weights yet.

    Raises:
        ModelLoadError: not supported; names the type and why, or what is supported.
    """
    family = SUPPORTED.get(config.model_type)
    if family is None:
        reason = UNSAFE.get(config.model_type, f"supported are {', '.join(sorted(SUPPORTED))}")
        raise ModelLoadError(f"model type {config.model_type!r} is not supported: {reason}")
    refuse_unsupported(config)
    return family
