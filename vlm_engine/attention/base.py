"""The seam between Hugging Face decoder layers and our paged KV cache.

Decoder layers call the function registered through transformers' ``AttentionInterface``; it finds the step's metadata
among its keyword arguments (they travel from the decoder's ``forward`` down to every layer) and hands over to a
backend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from vlm_engine.row_cuts import register_attention

NAME = "watchword_paged"


@dataclass(frozen=True, slots=True)
class KVCache:
    """K and V pages of every layer.

    Attributes:
        keys, values: per layer ``[blocks, block_size, kv_heads, head_dim]``, in one of two orders in memory.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    block_size: int

    @staticmethod
    def allocate(
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        heads_first: bool = False,
    ) -> KVCache:
        """Empty pages; with ``heads_first`` all pages of a head lie in one piece (:class:`AttentionBackend`)."""

        def pages() -> torch.Tensor:
            if heads_first:
                whole = torch.zeros((kv_heads, blocks, block_size, head_dim), dtype=dtype, device=device)
                return whole.permute(1, 2, 0, 3)
            return torch.zeros((blocks, block_size, kv_heads, head_dim), dtype=dtype, device=device)

        keys, values = (tuple(pages() for _ in range(layers)) for _ in range(2))
        return KVCache(keys, values, block_size)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One request's part of a packed step: rows ``start .. start + length`` of the batch, ``context`` tokens in all.

    ``context`` counts the new tokens too; ``blocks`` are the pages that hold them.
    """

    start: int
    length: int
    context: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """What every layer of a step needs to know.

    Attributes:
        slots: int64 ``[tokens]``: page slot (``block * block_size + offset``) that each new token's K and V go to.
        prepared: whatever the backend computed once for all layers of the step.
    """

    kv: KVCache
    backend: AttentionBackend
    sequences: tuple[Sequence, ...]
    slots: torch.Tensor
    prepared: Any = field(default=None)


class AttentionBackend(Protocol):
    """Computes causal attention of packed new tokens over paged contexts.

    Attributes:
        heads_first: whether it wants all pages of a head in one piece of memory, not all heads of a page.
    """

    name: str
    heads_first: bool

    def prepare(
        self, sequences: tuple[Sequence, ...], block_size: int, num_heads: int, kv_heads: int, device: torch.device
    ) -> Any:
        """Index tensors and masks that all layers of a step share."""
        ...

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        step: StepMetadata,
    ) -> torch.Tensor:
        """Writes the new K and V into their pages, then attends.

        Args:
            layer: index into ``step.kv``.
            query: ``[tokens, heads, head_dim]``.
            key, value: ``[tokens, kv_heads, head_dim]`` of the new tokens.
            scale: of the scores.

        Returns:
            ``[tokens, heads, head_dim]``.
        """
        ...


def _paged(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Query ``[1, heads, tokens, head_dim]`` in, ``[1, tokens, heads, head_dim]`` out, as AttentionInterface asks."""
    step: StepMetadata = kwargs["step"]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    layer: int = module.layer_idx  # type: ignore[assignment]
    out = step.backend.attend(
        layer, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), scale, step
    )
    return out.unsqueeze(0), None


def install(model: PreTrainedModel, sub_configs: bool) -> None:
    """Makes a model's text decoder attend through ``step=``; a vision tower keeps SDPA, by groups of rows.

    Args:
        model: any transformers model that supports ``AttentionInterface``.
        sub_configs: whether the model has ``text_config`` and ``vision_config``.
    """
    AttentionInterface.register(NAME, _paged)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
    if not sub_configs:
        model.set_attn_implementation(NAME)
        return
    parts = {"text_config": NAME}
    if getattr(model.config.vision_config, "attends", True):  # a tower of convolutions doesn't
        parts["vision_config"] = register_attention()
    model.set_attn_implementation(parts)
