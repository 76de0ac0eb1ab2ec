"""Vision-language models by a short name, each with what it needs and what it is good for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.models.shipped import nano_folder

GIB = 1024**3
BFLOAT16, FLOAT32 = 2, 4
"""Bytes of a number. The presets are published in bfloat16."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """The decoder's numbers that the KV cache depends on."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, width: int = BFLOAT16) -> int:
        """K and V of one token in all layers; ``width``: bytes of a number."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width

    @staticmethod
    def of(config: Mapping[str, Any]) -> KVShape | None:
        """Read from a checkpoint's ``config.json``; None where it doesn't say."""
        text = config.get("text_config")
        text = text if isinstance(text, Mapping) and "num_hidden_layers" in text else config
        try:
            heads = int(text["num_attention_heads"])
            head_dim = int(text.get("head_dim") or text["hidden_size"] // heads)
            return KVShape(int(text["num_hidden_layers"]), int(text.get("num_key_value_heads") or heads), head_dim)
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Preset:
    """A model that the engine runs: one that the hub has, or the one that comes with Watchword.

    Attributes:
        name: what ``engine.model`` may say instead of the hub id.
        hub_id: None of the one that is assembled here (:mod:`pipeline.models.nano`).
        parameters: numbers in its weights, as the modelling code counts them for the published configuration.
        context: most tokens of prompt and output, by its configuration.
        licence: of the weights.
    """

    name: str
    hub_id: str | None
    parameters: int
    kv: KVShape
    context: int
    licence: str
    good_for: str

    @property
    def weight_bytes(self) -> int:
        """In bfloat16: what is downloaded, and what loading it takes."""
        return self.parameters * BFLOAT16


NANO = "nano"
PRESETS: tuple[Preset, ...] = (
    Preset(
        NANO,
        None,
        140_174_570,
        KVShape(30, 3, 64),
        8192,
        "Apache-2.0",
        "machines without internet and first steps: comes with Watchword; clothes, colours and bags of one person",
    ),
    Preset(
        "smolvlm-256m",
        "HuggingFaceTB/SmolVLM-256M-Instruct",
        256_484_928,
        KVShape(30, 3, 64),
        8192,
        "Apache-2.0",
        "CPUs and first steps: the smallest, short descriptions, now and then wrong",
    ),
    Preset(
        "smolvlm-500m",
        "HuggingFaceTB/SmolVLM-500M-Instruct",
        507_482_304,
        KVShape(32, 5, 64),
        8192,
        "Apache-2.0",
        "CPUs with power to spare: twice the weights of the smallest",
    ),
    Preset(
        "qwen3-vl-2b",
        "Qwen/Qwen3-VL-2B-Instruct",
        2_127_532_032,
        KVShape(28, 8, 128),
        262_144,
        "Apache-2.0",
        "GPUs from 8 GB: descriptions, structured attributes and chat with tools",
    ),
    Preset(
        "qwen2.5-vl-3b",
        "Qwen/Qwen2.5-VL-3B-Instruct",
        3_754_622_976,
        KVShape(36, 2, 128),
        128_000,
        "Qwen Research (non-commercial)",
        "GPUs from 12 GB: a small KV cache, so many chats at once; not for commercial use",
    ),
    Preset(
        "qwen2.5-vl-7b",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        8_292_166_656,
        KVShape(28, 4, 128),
        128_000,
        "Apache-2.0",
        "GPUs from 24 GB: the largest of these, for fine detail and long answers",
    ),
)


def preset_of(name: str) -> Preset | None:
    """The preset by its short name or its hub id."""
    return next((preset for preset in PRESETS if name in (preset.name, preset.hub_id)), None)


def checkpoint_of(model: str) -> str:
    """What to load for ``engine.model``: a preset's hub id or folder for its name, anything else as it is.

    A folder of that name goes before the preset, as it does before a hub id.
    """
    preset = preset_of(model)
    if preset is None or Path(model).is_dir():
        return model
    return preset.hub_id or str(nano_folder())
