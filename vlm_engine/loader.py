"""Loads a checkpoint: configuration, weights, processor; from a local folder or the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
)

from vlm_engine import attention
from vlm_engine.encoder_task import SlicedEncoder
from vlm_engine.errors import ConfigError, ModelLoadError
from vlm_engine.families import Family, family_of
from vlm_engine.packed_linear import pack_head, pack_linears

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from vlm_engine.config import EngineConfig


CPU_ROWS = 192
"""Rows of a slice inside a vision layer on a CPU: 4 to 10 ms of SmolVLM's tower on two cores. From 192 query rows on,
SDPA's kernel takes blocks of 64 of them; below, of 32, at nearly half the speed."""
CUDA_ROWS = 4096
"""On a GPU a layer of less is too short to be worth a cut."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A loaded model with everything that speaks for it.

    Attributes:
        processor: the checkpoint's own processor, None for text models.
        generation: defaults of sampling that the checkpoint ships.
        encoder: the vision tower, cut into slices.
    """

    name: str
    config: PretrainedConfig
    family: Family
    encoder: SlicedEncoder
    tokenizer: Any
    processor: Any | None
    generation: GenerationConfig
    dtype: torch.dtype
    device: torch.device

    @property
    def chat_template(self) -> str | None:
        """The Jinja template, the processor's before the tokenizer's."""
        template: str | None = getattr(self.processor, "chat_template", None) or self.tokenizer.chat_template
        return template

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end an output: the generation configuration's, and the tokenizer's."""
        ends = self.generation.eos_token_id
        ids = {ends} if isinstance(ends, int) else set(ends or ())
        return frozenset(ids | {self.tokenizer.eos_token_id} - {None})


def load(config: EngineConfig, progress: Callable[[str], None] = lambda text: None) -> Checkpoint:
    """Loads what ``config.model`` names.

    Raises:
        ModelLoadError: absent, unreachable, damaged, or of an unsupported family; one readable line.
        ConfigError: a device that isn't there.
    """
    device = resolve_device(config.device)
    progress(f"reading {config.model}")
    try:
        hf_config = AutoConfig.from_pretrained(config.model, revision=config.revision)
        family_type = family_of(hf_config)
        dtype = resolve_dtype(config.dtype, hf_config, device)
        processor, tokenizer = load_processor(config.model, config.revision, family_type.takes_images)
        progress(f"loading weights ({str(dtype).removeprefix('torch.')} on {device})")
        auto = AutoModelForImageTextToText if family_type.takes_images else AutoModelForCausalLM
        model = auto.from_pretrained(config.model, revision=config.revision, dtype=dtype)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelLoadError(describe_load_error(config.model, error)) from error
    model = model.eval().requires_grad_(False).to(device)
    attention.install(model, sub_configs=family_type.takes_images)
    family = family_type(model)
    if device.type == "cpu":
        pack_linears(family.decoder)
        family.head = pack_head(family.head)
    return Checkpoint(
        name=Path(config.model).name if Path(config.model).is_dir() else config.model,
        config=hf_config,
        family=family,
        encoder=SlicedEncoder(
            family,
            model,
            _patch_size(hf_config),
            CPU_ROWS if device.type == "cpu" else CUDA_ROWS,
            config.encoder_slicing,
        ),
        tokenizer=tokenizer,
        processor=processor,
        generation=model.generation_config,
        dtype=dtype,
        device=device,
    )


def load_processor(model: str, revision: str | None, takes_images: bool) -> tuple[Any | None, Any]:
    """The checkpoint's processor (None for text models) and its tokenizer."""
    if not takes_images:
        return None, AutoTokenizer.from_pretrained(model, revision=revision)
    processor = AutoProcessor.from_pretrained(model, revision=revision)
    return processor, processor.tokenizer


def describe_load_error(model: str, error: Exception) -> str:
    """One line: what was asked for, what happened, what to do."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(model).is_dir():
        return f"{model}: can't be loaded as a checkpoint: {first}"
    if Path(model).is_absolute() or model.startswith("."):
        return f"{model}: there is no such folder"
    return (
        f"{model}: not in the local cache and not downloadable now ({first}); "
        "give a local folder with the checkpoint, or try again with access to the Hugging Face hub"
    )


def _patch_size(config: PretrainedConfig) -> int:
    """Side of a vision patch, 1 for text models."""
    size = getattr(getattr(config, "vision_config", None), "patch_size", 1)
    return int(size[0] if isinstance(size, list | tuple) else size)


def resolve_device(name: str) -> torch.device:
    """ "auto" -> CUDA when there is one. Raises :class:`ConfigError` for a device that isn't there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f'device is {name!r}, allowed are "auto", "cpu", "cuda" and "cuda:N"') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but torch sees no CUDA device here")
    return device


def resolve_dtype(name: str, config: PretrainedConfig, device: torch.device) -> torch.dtype:
    """ "auto" -> the checkpoint's own, but float32 on a CPU that would emulate a shorter one."""
    if name != "auto":
        dtype = getattr(torch, name)
        return dtype if isinstance(dtype, torch.dtype) else torch.float32
    own = getattr(config, "dtype", None) or getattr(config, "text_config", config).dtype or torch.float32
    if isinstance(own, str):
        own = getattr(torch, own)
    if device.type == "cpu" and (own != torch.bfloat16 or not cpu_has_bfloat16()):
        return torch.float32
    return own if isinstance(own, torch.dtype) else torch.float32


def cpu_has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16; elsewhere it would be slower by far than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
